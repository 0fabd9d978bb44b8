// The formulas of the serving specification, section 13.
#include "sim/economics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deepinfer::sim {
namespace {

constexpr double kDay = 86400;

}  // namespace

FactoryInput reading_a() {
  return {};
}

FactoryInput reading_b() {
  FactoryInput in;
  in.output_share = 0.035;
  in.decode_rate = 22700;
  return in;
}

Factory factory(const FactoryInput& in) {
  Factory f;
  const double o = in.output_share;
  const double miss_rate =
      in.hit_rate >= 0 ? 1 - in.hit_rate : o * in.prefill_rate / (in.decode_rate * (1 - o));
  f.hit_rate = 1 - miss_rate;
  f.output = o * in.tokens_per_day;
  f.hit = f.hit_rate * (1 - o) * in.tokens_per_day;
  f.miss = miss_rate * (1 - o) * in.tokens_per_day;
  const double from_hit = in.prices.hit * 1e-6 * f.hit, from_miss = in.prices.miss * 1e-6 * f.miss;
  const double from_output = in.prices.output * 1e-6 * f.output;
  f.revenue = from_hit + from_miss + from_output;
  f.hit_revenue_share = from_hit / f.revenue;
  f.miss_revenue_share = from_miss / f.revenue;
  f.output_revenue_share = from_output / f.revenue;
  f.gpus = f.revenue / (in.revenue_per_gpu_hour * 24);
  f.prefill_gpus = f.miss / (in.prefill_rate * kDay * in.efficiency);
  f.decode_gpus = f.output / (in.decode_rate * kDay * in.efficiency);
  f.gpus_needed = f.prefill_gpus + f.decode_gpus;
  f.utilisation = f.gpus_needed / f.gpus;
  f.feasible = f.gpus_needed <= f.gpus && f.hit_rate >= 0;
  f.tokens_per_gpu_day = in.tokens_per_day / f.gpus;
  f.stored_bytes_per_day = (f.miss + f.output) * in.kv_bytes_per_token;
  f.retention_days = in.store_bytes_per_gpu / (f.stored_bytes_per_day / f.gpus);
  f.read_bytes_per_s = f.hit * in.kv_bytes_per_token / kDay;
  f.write_bytes_per_s = f.stored_bytes_per_day * in.coding / kDay;
  const double raw = in.server_drives * in.drive_bytes;
  f.servers_capacity = f.gpus * in.store_bytes_per_gpu * in.coding / raw;
  f.servers_read = f.read_bytes_per_s / in.server_read;
  f.servers_over_read = f.servers_read * in.over_read;
  f.servers_write = f.write_bytes_per_s / in.server_write;
  return f;
}

double store_bytes(const Factory& f, const FactoryInput& in, double ttl_days) {
  return f.stored_bytes_per_day * in.coding * ttl_days;
}

double output_share_limit(FactoryInput in) {
  double low = 1e-6, high = 0.5;
  for (int i = 0; i < 100; ++i) {
    in.output_share = (low + high) / 2;
    (factory(in).feasible ? low : high) = in.output_share;
  }
  return low;
}

Day day(const DayInput& in) {
  const double hit = in.input * in.hit_rate, miss = in.input - hit, all = in.input + in.output;
  const double from_hit = hit * in.prices.hit, from_miss = miss * in.prices.miss;
  const double from_output = in.output * in.prices.output, revenue = from_hit + from_miss + from_output;
  Day d;
  d.hit_share = hit / all;
  d.miss_share = miss / all;
  d.output_share = in.output / all;
  d.hit_revenue_share = from_hit / revenue;
  d.miss_revenue_share = from_miss / revenue;
  d.output_revenue_share = from_output / revenue;
  d.usd_per_gpu_hour = revenue * 1e-6 / (in.gpus * 24);
  d.tokens_per_gpu_day = all / in.gpus;
  return d;
}

double cost_per_million(double usd_per_hour, double effective_per_s) {
  return usd_per_hour * 1e6 / (3600 * effective_per_s);
}

Cost cost(const CostInput& in) {
  Cost c;
  c.usd_per_hour = (in.prefill_gpus + in.decode_gpus) * in.usd_per_gpu_hour + in.other_usd_per_hour;
  c.prefill_side = in.prefill_gpus * in.prefill_rate * in.prefill_utilisation / in.inputs_per_output;
  c.decode_side = in.decode_gpus * in.decode_rate * in.decode_utilisation;
  c.effective = std::min(c.prefill_side, c.decode_side) * in.delivered_share;
  c.per_million = cost_per_million(c.usd_per_hour, c.effective);
  c.per_request = c.per_million * in.outputs_per_request * 1e-6;
  c.per_success = c.per_request * in.requests_per_task / in.success_rate;
  // Uncached inputs are run for every output, delivered or not.
  c.per_million_uncached =
      cost_per_million(c.usd_per_hour, c.effective / in.delivered_share * in.inputs_per_output);
  return c;
}

std::vector<CostExample> cost_examples() {
  std::vector<CostExample> out;
  CostInput base;
  out.push_back({"64 prefill and 64 decode GPUs", base, cost(base).per_million});
  CostInput decode = base;
  decode.decode_rate *= 1.5;
  out.push_back(
      {"decode half as fast again: prefill is the narrower pool", decode, cost(decode).per_million});
  CostInput prefill = base;
  prefill.prefill_rate *= 2;
  out.push_back(
      {"prefill twice as fast: decode becomes the narrower pool", prefill, cost(prefill).per_million});
  return out;
}

double break_even_volume(double fixed_usd, double saved_usd_per_million) {
  return fixed_usd / saved_usd_per_million * 1e6;
}

double prefix_gain_usd(const PrefixInput& in) {
  const double tb = in.prefix_tokens * in.kv_bytes_per_token * 1e-12;
  const double saved = in.prefix_tokens * in.usd_per_million_uncached * 1e-6;
  return in.future_hits * (saved - tb * in.over_read * in.read_usd_per_tb) -
         tb * in.coding * (in.write_usd_per_tb + in.storage_usd_per_tb_day * in.days);
}

double prefix_hits_needed(const PrefixInput& in) {
  PrefixInput none = in, one = in;
  none.future_hits = 0;
  one.future_hits = 1;
  const double fixed = -prefix_gain_usd(none), each = prefix_gain_usd(one) + fixed;
  return each > 0 ? fixed / each : std::numeric_limits<double>::infinity();
}

double speculation_gain(const SpeculationInput& in) {
  return in.plain_ms / (in.cycle_ms / in.tokens_per_cycle) - 1;
}

double tokens_per_cycle(int drafts, double accepted_share) {
  return 1 + drafts * accepted_share;
}

double migration_gain_ms(const MigrationInput& in) {
  const double bytes = in.context_tokens * in.kv_bytes_per_token + in.state_bytes;
  return in.remaining_tokens * (in.here_ms - in.there_ms) - bytes / in.link_bytes_per_s * 1e3 - in.wait_ms;
}

StoreSizing store_sizing(const FactoryInput& in, double unit_gpus, double pib) {
  StoreSizing s;
  s.server_raw = in.server_drives * in.drive_bytes;
  s.server_logical = s.server_raw / in.coding;
  s.gpus_per_server = s.server_logical / in.store_bytes_per_gpu;
  s.unit_logical = unit_gpus * in.store_bytes_per_gpu;
  s.unit_raw = s.unit_logical * in.coding;
  s.unit_servers = s.unit_raw / s.server_raw;
  s.pib_servers = pib * kPiB / s.server_raw;
  s.gpus_logical = pib * kPiB / in.store_bytes_per_gpu;
  s.gpus_physical = s.gpus_logical / in.coding;
  return s;
}

}  // namespace deepinfer::sim
