// Runs a fuzz target once over each file of the folders given: the seeds and the inputs that once crashed, as
// a plain test that needs no fuzzer. An empty or missing folder is a failure, so that a target cannot lose
// its corpus unnoticed.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  int64_t files = 0;
  for (int i = 1; i < argc; ++i) {
    std::error_code gone;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i], gone)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      std::printf("%s (%zu bytes)\n", entry.path().c_str(), bytes.size());
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++files;
    }
  }
  if (files == 0) {
    std::fprintf(stderr, "no input found; give folders that hold seed files\n");
    return 1;
  }
  std::printf("%lld inputs, no crash\n", static_cast<long long>(files));
  return 0;
}
