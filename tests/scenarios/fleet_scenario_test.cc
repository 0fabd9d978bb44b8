// Scenario files of the fleet's policies (tests/scenarios/fleet/*.scn): one command a line, indented lines
// below a question are what it must answer. Words are in docs/policies.md. `--fill FILE` prints the file with
// what really happened. Numbers may carry K and M (times 1,000) and ms, s (times in ns).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "policy/autoscaler.h"
#include "policy/decode_balancer.h"
#include "policy/drain.h"
#include "policy/failover.h"
#include "policy/prefill_balancer.h"
#include "policy/vision_balancer.h"

namespace deepinfer::policy {
namespace {

double number(std::string text) {
  if (text == "none") return std::nan("");
  double scale = 1;
  for (auto [suffix, by] : {std::pair{"ms", 1e6}, {"s", 1e9}, {"K", 1e3}, {"M", 1e6}}) {
    if (text.ends_with(suffix)) {
      text.resize(text.size() - std::string(suffix).size());
      scale = by;
      break;
    }
  }
  double v = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument("not a number: " + text);
  return v * scale;
}

// A command's words and its key=value pairs.
struct Line {
  std::vector<std::string> words;
  std::map<std::string, std::string> pairs;
  double get(const std::string& key, double otherwise) const {
    auto it = pairs.find(key);
    return it == pairs.end() ? otherwise : number(it->second);
  }
  int64_t whole(const std::string& key, double otherwise) const { return std::llround(get(key, otherwise)); }
  double at(size_t i) const { return number(words.at(i)); }
};

Line read_line(const std::string& text) {
  Line l;
  std::istringstream in(text);
  for (std::string w; in >> w;) {
    size_t eq = w.find('=');
    if (eq == std::string::npos) {
      l.words.push_back(w);
    } else {
      l.pairs[w.substr(0, eq)] = w.substr(eq + 1);
    }
  }
  return l;
}

class World {
 public:
  // What the command answers, a line each; nothing if it is only an event.
  std::vector<std::string> run(const Line& l) {
    const std::string& c = l.words.at(0);
    for (auto family :
         {&World::decode, &World::prefill, &World::scaler, &World::drain, &World::instance, &World::vision}) {
      std::vector<std::string> out;
      if ((this->*family)(c, l, &out)) return out;
    }
    throw std::invalid_argument("unknown command: " + c);
  }

 private:
  using Out = std::vector<std::string>*;

  bool decode(const std::string& c, const Line& l, Out out) {
    if (c == "decode") {
      decode_ = make_decode_balancer({}, static_cast<int>(l.get("groups", 1)),
                                     static_cast<int>(l.get("ranks", 1)), l.whole("free", 0));
    } else if (c == "load") {
      apply(&decode_, DecodeReported{static_cast<int>(l.at(1)),
                                     static_cast<int>(l.at(2)),
                                     {l.whole("requests", 0), l.whole("tokens", 0), l.whole("free", 0)}});
    } else if (c == "queue") {
      const int group = decide_group(decode_);
      out->push_back(group < 0 ? "no group" : fmt::format("group {}", group));
      if (group >= 0) apply(&decode_, DecodeQueued{group, id(l.words.at(1)), std::llround(l.at(2))});
    } else if (c == "place") {
      const int group = static_cast<int>(l.at(1));
      DecodeDecision d = decide_decode(decode_, group);
      for (const DecodeAssignment& a : d.assigned)
        out->push_back(fmt::format("{} rank {}", names_[a.seq], a.rank));
      constexpr const char* kWhy[] = {"all placed", "nothing waits", "no room", "closed"};
      out->push_back(kWhy[static_cast<int>(d.reason)]);
      apply(&decode_, DecodePlaced{group, d.assigned});
    } else if (c == "leaves") {
      apply(&decode_,
            DecodeReleased{static_cast<int>(l.at(1)), static_cast<int>(l.at(2)), std::llround(l.at(3))});
    } else if (c == "group") {
      apply(&decode_, DecodeGroupOpened{static_cast<int>(l.at(1)), l.words.at(2) == "opens"});
    } else {
      return false;
    }
    EXPECT_EQ(broken_invariant(decode_), "");
    return true;
  }

  bool prefill(const std::string& c, const Line& l, Out out) {
    if (c == "prefill") {
      PrefillConfig config;
      config.tiers.quota_ns = l.get("quota", 1.6e9);
      prefill_ = make_prefill_balancer(config, static_cast<int>(l.get("engines", 1)));
    } else if (c == "arrive") {
      const SeqId seq = id(l.words.at(1));
      apply(&prefill_, PrefillArrived{seq, static_cast<uint32_t>(raw(seq)),
                                      TenantId{static_cast<uint32_t>(l.get("tenant", 0))}, l.get("weight", 1),
                                      static_cast<int>(l.get("priority", 0)), l.whole("at", 0),
                                      l.whole("tokens", 1000), l.get("work", 1e6)});
    } else if (c == "pull") {
      const int engine = static_cast<int>(l.at(1));
      PullDecision d = decide_pull(prefill_, engine, l.whole("at", 0));
      if (d.reason != PullReason::kPulled) {
        out->push_back(name(d.reason));
      } else {
        out->push_back(fmt::format("{} tier {}", names_[SeqId{d.handle}], d.tier));
        apply(&prefill_, PrefillPulled{engine, d.handle});
      }
    } else if (c == "ran") {
      apply(&prefill_, PrefillRan{static_cast<int>(l.at(1)), static_cast<int>(l.get("tier", 0)),
                                  l.get("work", 0), l.words.size() > 2});
    } else if (c == "engine") {
      apply(&prefill_,
            PrefillEngineReport{static_cast<int>(l.at(1)), l.whole("reads", 0), l.words.at(2) == "opens"});
    } else {
      return false;
    }
    return true;
  }

  bool scaler(const std::string& c, const Line& l, Out out) {
    if (c == "scaler") {
      scaler_ = {};
      scaler_.config.target = l.get("target", 1);
      scaler_.config.advisory = l.get("advisory", 0) != 0;
      apply(&scaler_, ScalerMembers{0, l.whole("ready", 1), 0});
    } else if (c == "sample") {
      apply(&scaler_, ScalerSample{std::llround(l.at(1)), l.at(2), l.words.size() < 4});
    } else if (c == "members") {
      apply(&scaler_, ScalerMembers{std::llround(l.at(1)), l.whole("ready", 0), l.whole("pending", 0)});
    } else if (c == "scale") {
      ScaleDecision d = decide_scale(scaler_, std::llround(l.at(1)));
      out->push_back(fmt::format("{}: {}{}", name(d.reason), d.desired, d.carry_out ? ", carry out" : ""));
      if (d.carry_out) apply(&scaler_, ScalerChanged{std::llround(l.at(1)), d.desired});
    } else {
      return false;
    }
    return true;
  }

  bool drain(const std::string& c, const Line& l, Out out) {
    if (c == "drain") {
      drain_ = {};
      drain_.role = l.words.at(1) == "prefill" ? EngineRole::kPrefill : EngineRole::kDecode;
    } else if (c == "signal") {
      apply(&drain_, DrainAsked{std::llround(l.at(1))});
    } else if (c == "tick") {
      apply(&drain_, DrainTick{std::llround(l.at(1))});
    } else if (c == "routed") {
      apply(&drain_, DrainRequestRouted{});
    } else if (c == "started") {
      apply(&drain_, DrainRequestStarted{});
    } else if (c == "ended") {
      apply(&drain_, DrainRequestEnded{});
    } else if (c == "forwarded") {
      apply(&drain_, DrainRequestForwarded{l.words.at(1) == "queued"});
    } else if (c == "transfer") {
      if (l.words.at(1) == "begins") {
        apply(&drain_, DrainTransferBegan{});
      } else {
        apply(&drain_, DrainTransferEnded{});
      }
    } else if (c == "drain?") {
      DrainDecision d = decide_drain(drain_);
      out->push_back(
          fmt::format("{}{}{}{}{}", name(drain_.phase), d.registered ? ", registered" : "",
                      d.start_queued ? ", starts queued" : "",
                      d.forward_queued + d.forward_running > 0
                          ? fmt::format(", forward {} queued {} running", d.forward_queued, d.forward_running)
                          : "",
                      d.abort  ? ", abort"
                      : d.exit ? ", exit"
                               : ""));
    } else {
      return false;
    }
    return true;
  }

  bool instance(const std::string& c, const Line& l, Out out) {
    if (c == "instance") {
      instance_ = make_instance({}, l.whole("gpus", 64));
    } else if (c == "takes") {
      for (int i = 0; i < l.at(1); ++i) apply(&instance_, RequestTaken{});
    } else if (c == "gpu") {
      for (int i = 0; i < l.get("count", 1); ++i) {
        policy::apply(&instance_,
                      l.words.at(1) == "fails" ? InstanceEvent{GpuFailed{}} : InstanceEvent{GpuRepaired{}});
      }
    } else if (c == "returned") {
      apply(&instance_, RequestsReturned{std::llround(l.at(1))});
    } else if (c == "loaded") {
      apply(&instance_, WeightsLoaded{});
    } else if (c == "warm") {
      apply(&instance_, GraphsWarm{});
    } else if (c == "instance?") {
      out->push_back(fmt::format("{} epoch {} on {} GPUs, {} redundant, {} to return", name(instance_.phase),
                                 instance_.epoch, instance_.gpus, instance_.redundant,
                                 decide_instance(instance_).return_requests));
    } else {
      return false;
    }
    return true;
  }

  bool vision(const std::string& c, const Line& l, Out out) {
    if (c == "machine") {
      VisionMachine m;
      for (size_t i = 1; i < l.words.size(); ++i) m.patches_in_flight.push_back(std::llround(l.at(i)));
      vision_.machines.push_back(m);
    } else if (c == "images") {
      std::vector<int64_t> patches;
      for (size_t i = 1; i < l.words.size(); ++i) patches.push_back(std::llround(l.at(i)));
      VisionDecision d = decide_vision(vision_, patches);
      out->push_back(fmt::format("machine {}", d.machine));
      for (const VisionPlace& p : d.places)
        out->push_back(fmt::format("{} patches gpu {}", p.patches, p.gpu));
      apply(&vision_, VisionAssigned{d});
    } else {
      return false;
    }
    return true;
  }

  SeqId id(const std::string& text) {
    for (const auto& [seq, known] : names_) {
      if (known == text) return seq;
    }
    const SeqId seq{names_.size()};
    names_[seq] = text;
    return seq;
  }

  std::map<SeqId, std::string> names_;
  DecodeBalancerState decode_;
  PrefillBalancerState prefill_;
  ScalerState scaler_;
  DrainState drain_;
  InstanceState instance_;
  VisionState vision_;
};

// Problems as "file:line: what", and the file as it should be.
std::pair<std::vector<std::string>, std::string> run_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines, problems;
  for (std::string l; std::getline(in, l);) lines.push_back(l);
  std::string filled;
  World world;
  for (size_t i = 0; i < lines.size();) {
    const std::string text = lines[i].substr(0, lines[i].find('#'));
    filled += lines[i] + "\n";
    const size_t here = i++;
    if (text.find_first_not_of(" \t") == std::string::npos) continue;
    std::vector<std::string> expected, got;
    while (i < lines.size() && lines[i].starts_with("  ")) expected.push_back(lines[i++].substr(2));
    try {
      got = world.run(read_line(text));
    } catch (const std::exception& e) {
      got = {std::string("error: ") + e.what()};
    }
    for (const std::string& g : got) filled += "  " + g + "\n";
    if (got != expected)
      problems.push_back(fmt::format("{}:{}: {}", path.filename().string(), here + 1, fmt::join(got, " | ")));
  }
  return {problems, filled};
}

TEST(FleetScenario, EveryFileHolds) {
  int files = 0;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(DEEPINFER_SOURCE_DIR "/tests/scenarios/fleet")) {
    if (entry.path().extension() == ".scn") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    ++files;
    for (const std::string& p : run_file(path).first) ADD_FAILURE() << p;
  }
  EXPECT_GE(files, 8);
}

}  // namespace
}  // namespace deepinfer::policy

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--fill") {
    fmt::print("{}", deepinfer::policy::run_file(argv[2]).second);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
