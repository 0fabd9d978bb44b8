// The generation endpoint of SGLang, /generate, which its own tools and benches speak: a prompt as text or
// ids, the settings in an object of their own. Its body becomes one of Completions, so that there is one way
// into the engine; its answer has its own shape, with the whole text so far in every event of a stream.
// Source: the compatibility surface of the server (issue "the server"). Errors: kInvalidArgument names the
// member. Threads: the function any; one writer per stream.
#pragma once

#include <memory>
#include <string>

#include "edge/writer.h"

namespace deepinfer {

// `model`: what the body of Completions names. Members this server does not know are left out, as elsewhere.
Result<Json> completion_of_generate(const Json& body, const std::string& model);

std::unique_ptr<ResponseWriter> make_generate_writer(ResponseInfo info);

}  // namespace deepinfer
