// The same formulas in words, with their numbers in place.
#include <fmt/format.h>

#include <cmath>

#include "sim/economics.h"

namespace deepinfer::sim {

std::string pretty(double v) {
  if (!std::isfinite(v)) return v > 0 ? "never" : "-";
  const double size = std::fabs(v);
  if (size >= 1e12 || (size > 0 && size < 1e-3)) return fmt::format("{:.4g}", v);
  int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 4;
  std::string text = fmt::format("{:.{}f}", v, decimals);
  size_t dot = text.find('.');
  for (size_t i = dot == std::string::npos ? text.size() : dot; i > 3;) {
    i -= 3;
    if (text[i - 1] == '-') break;
    text.insert(i, ",");
  }
  return text;
}

std::string sheet_text(const Sheet& sheet, bool explain) {
  std::string out = sheet.title + "\n";
  for (const SheetLine& l : sheet.lines) {
    out += fmt::format("  {:<46}{:>16} {}\n", l.label, pretty(l.value), l.unit);
    if (explain) out += fmt::format("      = {}\n      = {}\n", l.formula, l.numbers);
  }
  return out;
}

Sheet factory_sheet(const std::string& title, const FactoryInput& in) {
  const Factory f = factory(in);
  Sheet s;
  s.title = title;
  const std::string mix =
      fmt::format("{:.4g} tokens/day, {:.4g} of them output", in.tokens_per_day, in.output_share);
  s.add("hit_rate", "hit rate of the input", 100 * f.hit_rate, "%",
        in.hit_rate >= 0 ? "given" : "1 - o P / (D (1 - o)): both pools equally large",
        fmt::format("o {:.4g}, P {:.6g}, D {:.6g} tokens/s per GPU", in.output_share, in.prefill_rate,
                    in.decode_rate));
  s.add("hit_share", "tokens: hits", 100 * f.hit / in.tokens_per_day, "%", "h (1 - o)", mix);
  s.add("miss_share", "tokens: misses", 100 * f.miss / in.tokens_per_day, "%", "(1 - h) (1 - o)", mix);
  s.add("output_share", "tokens: outputs", 100 * in.output_share, "%", "o", mix);
  const std::string prices = fmt::format("{:.4g} / {:.4g} / {:.4g} USD per million hit / miss / output",
                                         in.prices.hit, in.prices.miss, in.prices.output);
  s.add("revenue", "revenue per day", f.revenue, "USD", "sum of tokens times price", prices);
  s.add("hit_revenue_share", "revenue: hits", 100 * f.hit_revenue_share, "%", "hits times price / revenue",
        prices);
  s.add("miss_revenue_share", "revenue: misses", 100 * f.miss_revenue_share, "%",
        "misses times price / revenue", prices);
  s.add("output_revenue_share", "revenue: outputs", 100 * f.output_revenue_share, "%",
        "outputs times price / revenue", prices);
  s.add("gpus", "GPUs the revenue stands for", f.gpus, "GPUs", "revenue / (24 h * USD per GPU-hour)",
        fmt::format("{:.6g} / (24 * {:.4g})", f.revenue, in.revenue_per_gpu_hour));
  s.add("gpus_needed", "GPUs the work needs", f.gpus_needed, "GPUs",
        "misses / (86400 P eff) + outputs / (86400 D eff)",
        fmt::format("{:.1f} prefill + {:.1f} decode, eff {:.3g}", f.prefill_gpus, f.decode_gpus,
                    in.efficiency));
  s.add("utilisation", "utilisation needed", f.utilisation, f.feasible ? "feasible" : "NOT feasible",
        "needed / from revenue; feasible up to 1", fmt::format("{:.1f} / {:.1f}", f.gpus_needed, f.gpus));
  s.add("tokens_per_gpu_day", "tokens per GPU and day", f.tokens_per_gpu_day / 1e9, "10^9", "tokens / GPUs",
        fmt::format("{:.4g} / {:.1f}", in.tokens_per_day, f.gpus));
  s.add("retention_days", "days that a GPU's share of the store holds", f.retention_days, "days",
        "store per GPU / ((misses + outputs) bytes per token / GPUs)",
        fmt::format("{:.4g} / ({:.5g} * {:.4g} / {:.1f})", in.store_bytes_per_gpu, f.miss + f.output,
                    in.kv_bytes_per_token, f.gpus));
  for (int days : {3, 7}) {
    s.add(fmt::format("store_{}d_pib", days), fmt::format("store for {} days", days),
          store_bytes(f, in, days) / kPiB, "PiB on disk",
          "(misses + outputs) bytes per token * coding * days",
          fmt::format("{:.5g} * {:.4g} * {:.3g} * {}", f.miss + f.output, in.kv_bytes_per_token, in.coding,
                      days));
  }
  s.add("store_read", "read from the store", f.read_bytes_per_s / 1e9, "GB/s", "hits bytes per token / 86400",
        fmt::format("{:.5g} * {:.4g} / 86400", f.hit, in.kv_bytes_per_token));
  s.add("store_write", "written to the store", f.write_bytes_per_s / 1e9, "GB/s",
        "(misses + outputs) bytes per token * coding / 86400",
        fmt::format("{:.5g} * {:.4g} * {:.3g} / 86400", f.miss + f.output, in.kv_bytes_per_token, in.coding));
  s.add("servers_capacity", "storage servers by capacity", f.servers_capacity, "servers",
        "GPUs * store per GPU * coding / bytes per server",
        fmt::format("{:.1f} * {:.4g} * {:.3g} / {:.5g}", f.gpus, in.store_bytes_per_gpu, in.coding,
                    in.server_drives * in.drive_bytes));
  s.add("servers_read", "storage servers by reads", f.servers_read, "servers", "read / read of a server",
        fmt::format("{:.5g} / {:.4g}; with over-read {:.1f}", f.read_bytes_per_s, in.server_read,
                    f.servers_over_read));
  s.add("servers_write", "storage servers by writes", f.servers_write, "servers",
        "written / write of a server", fmt::format("{:.5g} / {:.4g}", f.write_bytes_per_s, in.server_write));
  return s;
}

Sheet cost_sheet(const std::string& title, const CostInput& in) {
  const Cost c = cost(in);
  Sheet s;
  s.title = title;
  s.add("usd_per_hour", "all resources", c.usd_per_hour, "USD/h", "GPUs * USD per GPU-hour + the rest",
        fmt::format("({:g} + {:g}) * {:g} + {:g}", in.prefill_gpus, in.decode_gpus, in.usd_per_gpu_hour,
                    in.other_usd_per_hour));
  s.add("prefill_side", "outputs that prefill allows", c.prefill_side, "tokens/s",
        "GPUs * rate * utilisation / uncached inputs per output",
        fmt::format("{:g} * {:g} * {:g} / {:g}", in.prefill_gpus, in.prefill_rate, in.prefill_utilisation,
                    in.inputs_per_output));
  s.add("decode_side", "outputs that decode allows", c.decode_side, "tokens/s", "GPUs * rate * utilisation",
        fmt::format("{:g} * {:g} * {:g}", in.decode_gpus, in.decode_rate, in.decode_utilisation));
  s.add("effective", "effective outputs", c.effective, "tokens/s", "the lesser * delivered share",
        fmt::format("min({:g}, {:g}) * {:g}", c.prefill_side, c.decode_side, in.delivered_share));
  s.add("per_million", "cost per million effective outputs", c.per_million, "USD", "C 10^6 / (3600 G)",
        fmt::format("{:g} * 10^6 / (3600 * {:g})", c.usd_per_hour, c.effective));
  s.add("per_request", "cost per request", c.per_request, "USD", "per million * outputs per request / 10^6",
        fmt::format("{:.4g} * {:g} / 10^6", c.per_million, in.outputs_per_request));
  s.add("per_success", "cost per successful task", c.per_success, "USD",
        "per request * requests per task / success rate",
        fmt::format("{:.4g} * {:g} / {:g}", c.per_request, in.requests_per_task, in.success_rate));
  s.add("per_million_uncached", "cost per million uncached inputs", c.per_million_uncached, "USD",
        "C 10^6 / (3600 * outputs * uncached inputs per output)",
        fmt::format("{:g} * 10^6 / (3600 * {:g})", c.usd_per_hour,
                    c.effective / in.delivered_share * in.inputs_per_output));
  return s;
}

Sheet break_even_sheet(const PrefixInput& p, const SpeculationInput& sp, const MigrationInput& m) {
  Sheet s;
  s.title = "Break-evens";
  s.add("prefix_gain", "keeping a prefix: gain", prefix_gain_usd(p), "USD",
        "future hits * (work saved - reads) - write - storage * days",
        fmt::format("{:g} hits of {:g} tokens, {:g} days", p.future_hits, p.prefix_tokens, p.days));
  s.add("prefix_hits", "keeping a prefix pays from", prefix_hits_needed(p), "hits",
        "(write + storage * days) / (work saved - reads)",
        fmt::format("{:g} USD per million uncached, {:g} USD per TB and day", p.usd_per_million_uncached,
                    p.storage_usd_per_tb_day));
  s.add("speculation_gain", "speculation: gain", 100 * speculation_gain(sp), "%",
        "plain ms per token / (cycle ms / committed tokens) - 1",
        fmt::format("{:g} / ({:g} / {:g}) - 1", sp.plain_ms, sp.cycle_ms, sp.tokens_per_cycle));
  s.add("migration_gain", "moving a request: gain", migration_gain_ms(m), "ms",
        "remaining tokens * (ms here - ms there) - bytes / link - wait",
        fmt::format("{:g} * ({:g} - {:g}) - {:.4g} B / {:g} B/s - {:g}", m.remaining_tokens, m.here_ms,
                    m.there_ms, m.context_tokens * m.kv_bytes_per_token + m.state_bytes, m.link_bytes_per_s,
                    m.wait_ms));
  s.add("break_even_volume", "50,000 USD pay back at 0.50 USD per million", break_even_volume(50000, 0.5),
        "tokens", "fixed cost / saving per token", "50000 / 0.50 * 10^6");
  return s;
}

}  // namespace deepinfer::sim
