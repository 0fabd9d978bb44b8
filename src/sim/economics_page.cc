// Inputs and a short script; the first values come from the caller.
#include "sim/economics_page.h"

#include <fmt/format.h>

#include "sim/chart.h"

namespace deepinfer::sim {
namespace {

struct Field {
  const char* id;
  const char* label;
  double value;
};

std::string fields(const std::string& title, const std::vector<Field>& list) {
  std::string out = "<h2>" + html_escape(title) + "</h2><table>\n";
  for (const Field& f : list) {
    out += fmt::format("<tr><td>{}</td><td><input id=\"{}\" value=\"{:.10g}\"></td></tr>\n",
                       html_escape(f.label), f.id, f.value);
  }
  return out + "</table>\n";
}

std::string results(const std::string& title, const Sheet& sheet) {
  std::string out = "<h2>" + html_escape(title) + "</h2><table>\n";
  for (const SheetLine& l : sheet.lines) {
    out += fmt::format("<tr title=\"{}\"><td>{}</td><td id=\"r_{}\">{}</td><td>{}</td></tr>\n",
                       html_escape(l.formula), html_escape(l.label), l.key, pretty(l.value),
                       html_escape(l.unit));
  }
  return out + "</table>\n";
}

constexpr const char* kScript = R"JS(<script>
const v = id => Number(document.getElementById(id).value);
function show(r) {
  for (const k in r) {
    const cell = document.getElementById("r_" + k);
    if (!cell) continue;
    const shown = r[k].toLocaleString("en", {maximumSignificantDigits: 5});
    cell.textContent = Number.isFinite(r[k]) ? shown : "never";
  }
}
function factory() {
  const T = v("T"), o = v("o"), P = v("P"), D = v("D"), day = 86400, pib = 1125899906842624;
  const given = document.getElementById("h").value.trim();
  const missRate = given !== "" && Number(given) >= 0 ? 1 - Number(given) : o * P / (D * (1 - o));
  const h = 1 - missRate;
  const O = o * T, H = h * (1 - o) * T, M = missRate * (1 - o) * T;
  const a = v("ph") * 1e-6 * H, b = v("pm") * 1e-6 * M, c = v("po") * 1e-6 * O, rev = a + b + c;
  const gpus = rev / (v("R") * 24);
  const need = M / (P * day * v("eff")) + O / (D * day * v("eff"));
  const stored = (M + O) * v("kv"), server = v("drives") * v("drive");
  show({hit_rate: 100 * h, hit_share: 100 * H / T, miss_share: 100 * M / T, output_share: 100 * o,
    revenue: rev, hit_revenue_share: 100 * a / rev, miss_revenue_share: 100 * b / rev,
    output_revenue_share: 100 * c / rev, gpus, gpus_needed: need, utilisation: need / gpus,
    tokens_per_gpu_day: T / gpus / 1e9,
    retention_days: v("store") / (stored / gpus), store_3d_pib: stored * v("ec") * 3 / pib,
    store_7d_pib: stored * v("ec") * 7 / pib, store_read: H * v("kv") / day / 1e9,
    store_write: stored * v("ec") / day / 1e9, servers_capacity: gpus * v("store") * v("ec") / server,
    servers_read: H * v("kv") / day / v("sread"), servers_write: stored * v("ec") / day / v("swrite")});
}
function cost() {
  const usd = (v("Np") + v("Nd")) * v("gh") + v("rest");
  const p = v("Np") * v("Qp") * v("up") / v("rho"), d = v("Nd") * v("Qd") * v("ud");
  const G = Math.min(p, d) * v("deliv");
  const per = usd * 1e6 / (3600 * G), req = per * v("opr") * 1e-6;
  show({usd_per_hour: usd, prefill_side: p, decode_side: d, effective: G, per_million: per, per_request: req,
    per_success: req * v("rpt") / v("ok"),
    per_million_uncached: usd * 1e6 / (3600 * G / v("deliv") * v("rho"))});
}
document.addEventListener("input", () => { factory(); cost(); });
</script>
)JS";

}  // namespace

std::string economics_page(const FactoryInput& in, const CostInput& c) {
  std::string body =
      "<p>Change a number; the results follow. Point at a result to see its formula.</p>"
      "<div style=\"display:flex;flex-wrap:wrap;gap:3rem\"><div>";
  body += fields("Factory", {{"T", "tokens per day", in.tokens_per_day},
                             {"o", "share of outputs", in.output_share},
                             {"h", "hit rate of the input (-1: equal pools)", in.hit_rate},
                             {"P", "prefill tokens/s per GPU", in.prefill_rate},
                             {"D", "decode tokens/s per GPU", in.decode_rate},
                             {"eff", "live over benchmark", in.efficiency},
                             {"R", "revenue USD per GPU-hour", in.revenue_per_gpu_hour},
                             {"ph", "USD per million hits", in.prices.hit},
                             {"pm", "USD per million misses", in.prices.miss},
                             {"po", "USD per million outputs", in.prices.output},
                             {"kv", "cache bytes per token", in.kv_bytes_per_token},
                             {"ec", "bytes on disk per byte", in.coding},
                             {"store", "store bytes per GPU", in.store_bytes_per_gpu},
                             {"drives", "drives per server", in.server_drives},
                             {"drive", "bytes per drive", in.drive_bytes},
                             {"sread", "server read B/s", in.server_read},
                             {"swrite", "server write B/s", in.server_write}});
  body += "</div><div>" + results("Results", factory_sheet("", in)) + "</div><div>";
  body += fields("Cost", {{"Np", "prefill GPUs", c.prefill_gpus},
                          {"Nd", "decode GPUs", c.decode_gpus},
                          {"gh", "USD per GPU-hour", c.usd_per_gpu_hour},
                          {"rest", "other USD per hour", c.other_usd_per_hour},
                          {"Qp", "prefill tokens/s per GPU", c.prefill_rate},
                          {"up", "utilisation of prefill", c.prefill_utilisation},
                          {"Qd", "decode tokens/s per GPU", c.decode_rate},
                          {"ud", "utilisation of decode", c.decode_utilisation},
                          {"rho", "uncached inputs per output", c.inputs_per_output},
                          {"deliv", "delivered share", c.delivered_share},
                          {"opr", "outputs per request", c.outputs_per_request},
                          {"rpt", "requests per task", c.requests_per_task},
                          {"ok", "success rate of tasks", c.success_rate}});
  body += "</div><div>" + results("Cost", cost_sheet("", c)) + "</div></div>\n";
  return html_page("DeepInfer economics", body + kScript);
}

}  // namespace deepinfer::sim
