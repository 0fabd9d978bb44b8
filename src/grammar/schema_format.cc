// Each format as a regular expression of the whole text.
#include "grammar/schema_format.h"

#include <algorithm>

#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

// Days exist: 30 and 31 where the month has them, 29 February in leap years only.
const char kDate[] =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579]["
    "26])00|0000)-02-29)";
// Python's and other calendars begin with year 1.
const char kTime[] =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]"
    ")";
const char kLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const char kAtom[] = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
const char kOctet[] = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const char kUri[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})";

std::string ipv4() {
  std::string o = kOctet;
  return o + "\\." + o + "\\." + o + "\\." + o;
}

std::string ipv6() {
  std::string h = "[0-9A-Fa-f]{1,4}", tail = "(?:" + h + ":" + h + "|" + ipv4() + ")";
  std::string out = "(?:(?:" + h + ":){6}" + tail;
  // "::" after up to k groups, with 5 - k to 0 groups and the last 32 bits behind it.
  for (int k = 0; k <= 5; ++k) {
    std::string before = k == 0 ? "" : "(?:" + h + "(?::" + h + "){0," + std::to_string(k - 1) + "})?";
    int after = 5 - k;
    out += "|" + before + "::(?:" + h + ":){" + std::to_string(after) + "}" + tail;
  }
  out += "|(?:" + h + "(?::" + h + "){0,5})?::" + h;
  out += "|(?:" + h + "(?::" + h + "){0,6})?::)";
  return out;
}

std::string hostname() {
  std::string l = kLabel;
  return l + "(?:\\." + l + ")*";
}

std::string pattern_of(std::string_view name) {
  std::string date = kDate, time = kTime;
  if (name == "date") return date;
  if (name == "time") return time;
  if (name == "date-time") return date + "[Tt]" + time;
  if (name == "duration")
    return "P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-"
           "9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?"
           "|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)|[0-9]+W)";
  if (name == "uuid") return "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  if (name == "ipv4") return ipv4();
  if (name == "ipv6") return ipv6();
  if (name == "hostname") return hostname();
  if (name == "email") return std::string(kAtom) + "(?:\\." + kAtom + ")*@" + hostname();
  std::string c = kUri, rest = "(?:\\?(?:" + c + "|\\?)*)?(?:#(?:" + c + "|\\?)*)?";
  std::string first = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";  // no slash
  std::string path = "(?:/(?:" + first + c + "*)?|" + first + c + "*)?";
  std::string authority = "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?::[0-9]*)?|\\[(?:" + ipv6() +
                          ")\\](?::[0-9]*)?)(?:/" + c + "*)?";
  if (name == "uri") return "[A-Za-z][A-Za-z0-9+.-]*:(?:" + authority + "|" + path + ")" + rest;
  if (name == "uri-reference") {
    std::string no_colon = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})";
    return "(?:[A-Za-z][A-Za-z0-9+.-]*:(?:" + authority + "|" + path + ")|" + authority + "|/(?:" + first +
           c + "*)?|" + no_colon + "+(?:/" + c + "*)?|)" + rest;
  }
  if (name == "json-pointer") return "(?:/(?:[^/~]|~[01])*)*";
  if (name == "relative-json-pointer") return "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)";
  return {};
}

constexpr std::string_view kNames[] = {"date",
                                       "time",
                                       "date-time",
                                       "duration",
                                       "uuid",
                                       "ipv4",
                                       "ipv6",
                                       "hostname",
                                       "email",
                                       "uri",
                                       "uri-reference",
                                       "json-pointer",
                                       "relative-json-pointer"};

}  // namespace

bool known_format(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Result<ExprPtr> format_expr(std::string_view name, Spelling spelling, Budget* budget) {
  RegexOptions options;
  options.spelling = spelling;
  options.dot_all = true;
  return parse_regex(pattern_of(name), options, budget);
}

}  // namespace deepinfer::grammar
