// Reads: what a fetch asks of the files, in which order, and what of it is handed out. Whole records, or,
// where a fetch wants the first layers of every block before the rest of any, two pieces of each: all the
// first ones and the windows come first. Every byte is checked before anybody hears of it.
#include <algorithm>
#include <cstring>

#include "host/clock.h"
#include "store/directory_impl.h"

namespace deepinfer::store {

using policy::ObjectEvent;

Result<std::shared_ptr<const File>> DirectoryStoreImpl::file_of(uint16_t writer, uint32_t segment) {
  std::string path;
  {
    std::lock_guard lock(mutex_);
    path = generations_[writer].path;
  }
  std::lock_guard lock(files_mutex_);
  auto [it, fresh] = files_.try_emplace({writer, segment});
  if (!fresh) return it->second;
  Result<File> f = open_file(path + "/" + segment_name(segment),
                             options_.direct ? OpenMode::kReadDirect : OpenMode::kRead);
  if (!f.ok()) {
    files_.erase(it);
    return f.status();
  }
  it->second = std::make_shared<const File>(std::move(f).value());
  std::shared_ptr<const File> out = it->second;
  // Descriptors are few: those of the lowest numbers go first, and are opened again when needed.
  constexpr size_t kMostOpen = 200;
  if (files_.size() > kMostOpen)
    files_.erase(files_.begin()->second == out ? std::prev(files_.end()) : files_.begin());
  return out;
}

// What the index says of the parts, leased for the time of reading; ends at the first that is not there.
void DirectoryStoreImpl::find_parts(FetchState* f) {
  std::vector<EntryId> entries;
  for (const FetchPart& part : f->parts) {
    EntryId e = index_.find(part.key, part.kind);
    // A lease that ran out is no harm while the object is there: it is leased again for the time of reading.
    if (e == kNoEntry || index_.at(e).payload_bytes != part.to.size() ||
        index_.at(e).expires_s <= policy::store_seconds(clock_)) {
      f->why = error(Code::kNotFound, "the object is not in the store (any more)");
      break;
    }
    const IndexEntry& x = index_.at(e);
    lease_entry(e, &entries);
    PartState s;
    s.writer = x.writer;
    s.want.kind = x.kind;
    s.want.key = x.key;
    s.want.generation = generations_[x.writer].id;
    s.want.segment = x.segment;
    s.want.page = x.page;
    s.want.payload_bytes = x.payload_bytes;
    s.split = part.kind == Kind::kBlock && f->split > 0 && f->split < int64_t{x.payload_bytes};
    f->states.push_back(std::move(s));
  }
  f->lease = new_lease(std::move(entries));
  for (const PartState& s : f->states) f->open += s.split ? 2 : 1;
  f->first_open = f->parts.size();
}

namespace {

// Reads that lie one after the other become one: a device gives more in fewer, larger pieces. But of a fetch
// they are eight at least, so that it is read and checked at the same time, and each takes a 32nd of the
// memory at most, so that the device has several in its share (reader.cc). A joined read that fails is asked
// again one by one, so that a bad place costs only what lies there.
std::vector<ReadOp> join_neighbours(std::vector<ReadOp> ops, Reader* reader, int64_t memory_bytes) {
  int64_t total = 0;
  for (const ReadOp& op : ops) total += op.bytes;
  const int64_t most = std::min(total, memory_bytes / 4) / 8;
  std::vector<ReadOp> out;
  for (size_t i = 0, end = 0; i < ops.size(); i = end) {
    int64_t bytes = 0;
    for (end = i; end < ops.size() && bytes + ops[end].bytes <= most; ++end) {
      if (ops[end].file != ops[i].file || ops[end].offset != ops[i].offset + bytes) break;
      bytes += ops[end].bytes;
    }
    end = std::max(end, i + 1);
    if (end - i == 1) {
      out.push_back(std::move(ops[i]));
      continue;
    }
    ReadOp joined = ops[i];
    joined.bytes = bytes;
    auto from = ops.begin() + static_cast<int64_t>(i), to = ops.begin() + static_cast<int64_t>(end);
    auto parts =
        std::make_shared<std::vector<ReadOp>>(std::make_move_iterator(from), std::make_move_iterator(to));
    joined.done = [parts, reader](Status status, std::span<const uint8_t> all) {
      if (!status.ok() && status.code() != Code::kCancelled) return reader->submit(std::move(*parts));
      for (ReadOp& op : *parts) {
        size_t n = std::min(all.size(), static_cast<size_t>(op.bytes));
        op.done(status, all.first(n));
        all = all.subspan(n);
      }
    };
    out.push_back(std::move(joined));
  }
  return out;
}

}  // namespace

FetchId DirectoryStoreImpl::fetch(Fetch fetch) {
  auto f = std::make_shared<FetchState>();
  f->parts = std::move(fetch.parts);
  f->split = fetch.split;
  if (f->split > 0) f->first = std::move(fetch.first);
  f->done = std::move(fetch.done);
  f->begun_ns = deepinfer::now_ns();
  FetchId id{};
  {
    std::lock_guard lock(mutex_);
    id = FetchId(++last_id_);
    ++counters_.fetches;
    if (raw(fetch.lease) != 0 && !holds_lease(fetch.lease)) ++counters_.lease_expiries;
    find_parts(f.get());
    fetches_[raw(id)] = f;
  }
  std::vector<ReadOp> first, rest;
  for (size_t i = 0; i < f->states.size(); ++i) {
    const PartState& s = f->states[i];
    Result<std::shared_ptr<const File>> file = file_of(s.writer, s.want.segment);
    auto ask = [&](Piece piece, PageRange pages, std::vector<ReadOp>* to) {
      if (!file.ok()) return take_piece(f, i, piece, file.status(), {});
      ReadOp op;
      op.file = *file;
      op.offset = int64_t{s.want.page} * kPage + pages.begin;
      op.bytes = pages.end - pages.begin;
      op.limit = f->limit;
      op.rank = i;
      op.done = [this, f, i, piece](Status status, std::span<const uint8_t> bytes) {
        take_piece(f, i, piece, std::move(status), bytes);
      };
      // A window is wanted with the first layers.
      to->insert(s.want.kind == Kind::kWindow ? to->begin() : to->end(), std::move(op));
    };
    int64_t bytes = s.want.payload_bytes;
    if (s.split) {
      ask(Piece::kFirst, pages_of(0, f->split), &first);
      ask(Piece::kRest, pages_of(f->split, bytes), &rest);
    } else {
      ask(Piece::kWhole, pages_of(0, bytes), &first);
    }
  }
  first.insert(first.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  // A few reads are quicker side by side; a limit is kept in small steps.
  constexpr size_t kMany = 32;
  if (first.size() >= kMany && options_.limit_bytes_per_s == 0)
    first = join_neighbours(std::move(first), reader_.get(), options_.read_memory_bytes);
  if (f->states.empty()) {
    end_fetch(f);
  } else if (!first.empty()) {
    reader_->submit(std::move(first));
  }
  return id;
}

// Writing to a part's place is announced: who ends the fetch waits for it, nobody else does.
bool DirectoryStoreImpl::begin_writing(FetchState* f) {
  std::lock_guard lock(f->mutex);
  f->writing += f->closed ? 0 : 1;
  return !f->closed;
}

// Copies a piece that was read to its place and checks it. Errors: it is damaged.
Status DirectoryStoreImpl::put_piece(FetchState* f, size_t i, Piece piece, std::span<const uint8_t> bytes) {
  if (!begin_writing(f)) return {};
  Status done = piece == Piece::kWhole ? put_whole(f, i, bytes) : put_half(f, i, piece, bytes);
  std::lock_guard lock(f->mutex);
  if (--f->writing == 0) f->idle.notify_all();
  return done;
}

Status DirectoryStoreImpl::put_whole(FetchState* f, size_t i, std::span<const uint8_t> bytes) {
  PartState& s = f->states[i];
  DI_TRY(copy_record(bytes, s.want, f->parts[i].to));
  std::lock_guard lock(f->mutex);
  s.first = s.rest = true;
  return {};
}

Status DirectoryStoreImpl::put_half(FetchState* f, size_t i, Piece piece, std::span<const uint8_t> bytes) {
  PartState& s = f->states[i];
  auto split = static_cast<size_t>(f->split);
  bool is_first = piece == Piece::kFirst, known = is_first;
  std::span<uint8_t> to = is_first ? f->parts[i].to.first(split) : f->parts[i].to.subspan(split);
  size_t from = static_cast<size_t>(kRecordHeaderBytes);
  RecordHeader head;
  if (is_first) {
    DI_ASSIGN(head, check_header(bytes, s.want));
    if (head.payload_bytes != f->parts[i].to.size())
      return error(Code::kInvalidData, "a payload of another size");
  } else {
    from += split - static_cast<size_t>(pages_of(f->split, f->split + 1).begin);
    std::lock_guard lock(f->mutex);
    known = s.first;
    head = s.head;
  }
  if (bytes.size() < from + to.size()) return error(Code::kInvalidData, "the record ends early");
  // Mostly the first piece comes first, of a record that is split where this fetch wants it.
  bool alone = known && head.split == split;
  uint32_t crc = copy_crc32c(bytes.subspan(from, to.size()), to, is_first ? 0 : head.first_crc);
  auto damaged = [] { return error(Code::kInvalidData, "the payload's checksum is wrong"); };
  if (alone && crc != (is_first ? head.first_crc : head.payload_crc)) return damaged();
  std::lock_guard lock(f->mutex);
  if (is_first) s.head = head;
  (is_first ? s.came_first : s.came_rest) = true;
  (is_first ? s.first : s.rest) = alone;
  if (!s.came_first || !s.came_rest || (s.first && s.rest)) return {};
  // Out of order, or not split there: what lies in place is checked as a whole.
  head = s.head;
  set_checksums(&head, f->parts[i].to);
  if (head.payload_crc != s.head.payload_crc || head.first_crc != s.head.first_crc) return damaged();
  s.first = s.rest = true;
  return {};
}

// A read has ended, on whatever thread.
void DirectoryStoreImpl::take_piece(const std::shared_ptr<FetchState>& f, size_t i, Piece piece,
                                    Status status, std::span<const uint8_t> bytes) {
  const PartState& s = f->states[i];
  bool damaged = false, all_first = false, given_up = status.code() == Code::kCancelled;
  if (status.ok()) {
    status = put_piece(f.get(), i, piece, bytes);
    damaged = !status.ok();
  }
  if (status.ok()) {
    std::lock_guard lock(f->mutex);
    if (s.first && !f->states[i].counted) {
      f->states[i].counted = true;
      all_first = --f->first_open == 0;
    }
  }
  if (status.ok() && i == 0 && piece != Piece::kRest) {
    std::lock_guard lock(mutex_);
    counters_.first_part_ns += deepinfer::now_ns() - f->begun_ns;
  }
  if (!status.ok() && !given_up) {
    std::lock_guard lock(mutex_);
    counters_.integrity_failures += damaged ? 1 : 0;
    EntryId id = index_.find(s.want.key, s.want.kind);
    bool same = id != kNoEntry && generations_[index_.at(id).writer].id == s.want.generation &&
                index_.at(id).segment == s.want.segment && index_.at(id).page == s.want.page;
    // A file that is gone or a place that does not check: nobody shall be sent there again.
    if (same && status.code() != Code::kResourceExhausted) erase(id, ObjectEvent::kInvalidate);
  }
  if (all_first && f->first) say_first(f);
  bool last = false;
  {
    std::lock_guard lock(f->mutex);
    if (!status.ok() && f->why.ok()) f->why = status;
    last = --f->open == 0;
    // What comes after a hole is of no use; what comes before it is.
    if (!status.ok()) f->limit->store(std::min(f->limit->load(), i));
  }
  if (last) end_fetch(f);
}

void DirectoryStoreImpl::say_first(const std::shared_ptr<FetchState>& f) {
  int64_t ns = deepinfer::now_ns() - f->begun_ns;
  {
    std::lock_guard lock(mutex_);
    if (!holds_lease(f->lease)) return;  // the end will tell
    ++counters_.split_fetches;
    counters_.first_layers_ns += ns;
  }
  std::lock_guard one(f->calls);
  {
    std::lock_guard lock(f->mutex);
    if (f->closed) return;
    f->said_first = true;
  }
  f->first(ns);
}

void DirectoryStoreImpl::end_fetch(const std::shared_ptr<FetchState>& f) {
  FetchOutcome out;
  bool said_first = false;
  {
    std::unique_lock lock(f->mutex);
    if (f->closed) return;
    f->closed = true;
    f->idle.wait(lock, [&] { return f->writing == 0; });
    said_first = f->said_first;
    while (out.whole < f->states.size() && f->states[out.whole].first && f->states[out.whole].rest)
      out.bytes += static_cast<int64_t>(f->parts[out.whole++].to.size());
    out.why = f->why;
  }
  out.ns = deepinfer::now_ns() - f->begun_ns;
  {
    std::lock_guard lock(mutex_);
    // The last byte is here: if the lease did not hold until now, it may be another object's.
    if (!holds_lease(f->lease)) {
      ++counters_.lease_expiries;
      out.whole = 0;
      out.bytes = 0;
      out.why = error(Code::kDeadlineExceeded, "the read lease ended before the last byte came");
    }
    end_lease(f->lease);
    counters_.fetched_objects += static_cast<int64_t>(out.whole);
    counters_.fetched_bytes += out.bytes;
    counters_.fetch_ns += out.ns;
    counters_.split_fetch_ns += said_first ? out.ns : 0;
    counters_.short_fetches += out.whole < f->parts.size() ? 1 : 0;
    std::erase_if(fetches_, [&](const auto& x) { return x.second == f; });
  }
  if (out.whole < f->parts.size() && out.why.ok())
    out.why = error(Code::kCancelled, "the fetch was given up");
  std::lock_guard one(f->calls);  // not beside `first`
  if (f->done) f->done(out);
}

void DirectoryStoreImpl::cancel(FetchId id) {
  std::shared_ptr<FetchState> f;
  {
    std::lock_guard lock(mutex_);
    auto it = fetches_.find(raw(id));
    if (it == fetches_.end()) return;
    f = it->second;
    ++counters_.cancelled_fetches;
  }
  f->limit->store(0);
  end_fetch(f);
}

}  // namespace deepinfer::store
