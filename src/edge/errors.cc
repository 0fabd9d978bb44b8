// Status codes and bodies of edge/errors.h.
#include "edge/errors.h"

namespace deepinfer {
namespace {

const char* type_name(const Status& status) {
  switch (http_status(status)) {
    case 400:
      return "invalid_request_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return "internal_error";
  }
}

Json error_object(const Status& status) {
  return Json{{"message", status.message()},
              {"type", type_name(status)},
              {"param", nullptr},
              {"code", type_name(status)}};
}

std::string compact(const Json& value) {
  std::string out;
  append_json(value, JsonStyle::kCompact, &out);
  return out;
}

}  // namespace

int http_status(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
      return 400;
    case Code::kResourceExhausted:
      return 429;
    case Code::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

std::string error_body(const Status& status, Protocol protocol) {
  Json body = Json::object();
  if (protocol == Protocol::kMessages) body["type"] = "error";
  body["error"] = error_object(status);
  return compact(body);
}

std::string stream_error_frame(const Status& status, Protocol protocol, int64_t sequence_number) {
  switch (protocol) {
    case Protocol::kChat:
      return "data: " + compact(Json{{"error", error_object(status)}}) + "\n\n";
    case Protocol::kMessages:
      return "event: error\ndata: " +
             compact(
                 Json{{"type", "error"}, {"error", {{"type", "api_error"}, {"message", status.message()}}}}) +
             "\n\n";
    case Protocol::kResponses:
      break;
  }
  return "event: error\ndata: " +
         compact(Json{{"type", "error"},
                      {"code", type_name(status)},
                      {"message", status.message()},
                      {"param", nullptr},
                      {"sequence_number", sequence_number}}) +
         "\n\n";
}

}  // namespace deepinfer
