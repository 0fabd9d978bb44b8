// What a token factory earns, costs and needs: formulas on published or given inputs, each explainable. Money
// is USD, bytes are 10^n unless a name says PiB. Does not simulate and does not know who is right: two
// readings of the disclosed figures stand side by side. Source: serving specification 13 and 7.10. Threads:
// pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/sheet.h"

namespace deepinfer::sim {

inline constexpr double kPiB = 1125899906842624.0;

struct Prices {  // USD per million tokens
  double hit = 0.003, miss = 0.15, output = 0.60;
};

struct FactoryInput {
  double tokens_per_day = 155e12;
  double output_share = 0.005;       // of all tokens
  double prefill_rate = 81500;       // uncached tokens/s per GPU, benchmark
  double decode_rate = 14466;        // output tokens/s per GPU, benchmark
  double revenue_per_gpu_hour = 38;  // disclosed
  double efficiency = 0.8;           // live rate over benchmark rate
  double hit_rate = -1;              // of the input; negative: from equal pools
  Prices prices;
  double kv_bytes_per_token = 890;
  double coding = 1.2;  // bytes on disk per byte stored (10 + 2)
  double store_bytes_per_gpu = 14.4e12;
  double over_read = 1.1;  // 11 of 12 asked for 10
  double server_drives = 20, drive_bytes = 30.73e12, server_read = 40e9, server_write = 5e9;
};
FactoryInput reading_a();  // 60 requests per rank, 0.5 % output
FactoryInput reading_b();  // 128 requests per rank, 3.5 % output

struct Factory {
  double hit_rate = 0;
  double hit = 0, miss = 0, output = 0;  // tokens per day
  double revenue = 0;                    // USD per day
  double hit_revenue_share = 0, miss_revenue_share = 0, output_revenue_share = 0;
  double gpus = 0;         // that the disclosed revenue per hour pays for
  double gpus_needed = 0;  // that the rates ask for
  double prefill_gpus = 0, decode_gpus = 0;
  double utilisation = 0;
  bool feasible = false;
  double tokens_per_gpu_day = 0;
  double stored_bytes_per_day = 0;
  double retention_days = 0;
  double read_bytes_per_s = 0, write_bytes_per_s = 0;
  double servers_capacity = 0, servers_read = 0, servers_over_read = 0, servers_write = 0;
};
Factory factory(const FactoryInput& in);
double store_bytes(const Factory& f, const FactoryInput& in, double ttl_days);
// The largest share of output tokens that the revenue's GPUs can serve (bisection).
double output_share_limit(FactoryInput in);
Sheet factory_sheet(const std::string& title, const FactoryInput& in);

// A service in daylight: prices and counts as disclosed once, to check the formulas against.
struct DayInput {
  double input = 608e9, hit_rate = 0.563, output = 168e9, gpus = 1814;
  Prices prices{0.14, 0.55, 2.19};
};
struct Day {
  double hit_share = 0, miss_share = 0, output_share = 0;
  double hit_revenue_share = 0, miss_revenue_share = 0, output_revenue_share = 0;
  double usd_per_gpu_hour = 0, tokens_per_gpu_day = 0;
};
Day day(const DayInput& in);

// Two pools behind each other; the narrower one sets the rate.
struct CostInput {
  double prefill_gpus = 64, decode_gpus = 64;
  double usd_per_gpu_hour = 4, other_usd_per_hour = 128;
  double prefill_rate = 10000, prefill_utilisation = 0.5;  // uncached tokens/s per GPU
  double decode_rate = 1000, decode_utilisation = 0.75;    // output tokens/s per GPU
  double inputs_per_output = 10;                           // uncached inputs
  double delivered_share = 0.95;  // of outputs: delivered once, within quality and latency terms
  double outputs_per_request = 500;
  double requests_per_task = 3, success_rate = 0.8;  // of tasks
};
struct Cost {
  double usd_per_hour = 0;
  double prefill_side = 0, decode_side = 0;  // output tokens/s each pool allows
  double effective = 0;                      // output tokens/s
  double per_million = 0;                    // effective outputs
  double per_request = 0, per_success = 0, per_million_uncached = 0;
};
Cost cost(const CostInput& in);
Sheet cost_sheet(const std::string& title, const CostInput& in);
double cost_per_million(double usd_per_hour, double effective_per_s);

struct CostExample {
  std::string what;
  CostInput input;
  double per_million = 0;
};
std::vector<CostExample> cost_examples();  // the worked three

// Break-evens. Each is a plain comparison; positive means it pays.
double break_even_volume(double fixed_usd, double saved_usd_per_million);  // tokens
struct PrefixInput {
  double future_hits = 3, prefix_tokens = 50000, usd_per_million_uncached = 0.05;
  double write_usd_per_tb = 0.02, storage_usd_per_tb_day = 0.5, read_usd_per_tb = 0.01, days = 3;
  double kv_bytes_per_token = 890, coding = 1.2, over_read = 1.1;
};
double prefix_gain_usd(const PrefixInput& in);
double prefix_hits_needed(const PrefixInput& in);  // infinity: reads cost more than the work saved
struct SpeculationInput {
  double plain_ms = 10, cycle_ms = 13.3, tokens_per_cycle = 3.2;
};
double speculation_gain(const SpeculationInput& in);         // plain time per token over speculative, minus 1
double tokens_per_cycle(int drafts, double accepted_share);  // 1 + drafts * share, for a fixed length
struct MigrationInput {
  double remaining_tokens = 300, context_tokens = 50000, here_ms = 6, there_ms = 4;
  double link_bytes_per_s = 50e9, kv_bytes_per_token = 890, state_bytes = 3042336, wait_ms = 50;
};
double migration_gain_ms(const MigrationInput& in);
Sheet break_even_sheet(const PrefixInput& p, const SpeculationInput& s, const MigrationInput& m);

// Storage servers behind a deployment (7.10).
struct StoreSizing {
  double server_raw = 0, server_logical = 0, gpus_per_server = 0;
  double unit_logical = 0, unit_raw = 0, unit_servers = 0;  // of a unit of GPUs
  double pib_servers = 0;                                   // of `pib` if physical
  double gpus_logical = 0, gpus_physical = 0;               // that `pib` stands behind
};
StoreSizing store_sizing(const FactoryInput& in, double unit_gpus, double pib);

}  // namespace deepinfer::sim
