// The writer's thread: batches of records, then their commit entries, then the index, then the callers. A
// full disk, a vanished directory or a generation that somebody took over end in refused writes and a time to
// try again; they never end in a wrong object, and never in an error of a request.
#include <algorithm>

#include "base/check.h"
#include "store/directory_impl.h"

namespace deepinfer::store {

using policy::ObjectEvent;

void DirectoryStoreImpl::queue_note(ManifestEntry note) {
  if (!options_.writable) return;
  WriteJob job;
  job.notes.push_back(note);
  jobs_.push_back(std::move(job));
  jobs_changed_.notify_all();
}

void DirectoryStoreImpl::set_trouble(const Status& why) {
  constexpr int64_t kFirstWaitNs = 1'000'000'000, kLongestWaitNs = 30'000'000'000;
  std::lock_guard lock(mutex_);
  ++counters_.write_errors;
  trouble_ = why.message();
  disk_full_ = why.code() == Code::kResourceExhausted;
  retry_wait_ns_ = std::clamp(retry_wait_ns_ * 2, kFirstWaitNs, kLongestWaitNs);
  retry_ns_ = monotonic() + retry_wait_ns_;
}

// Somebody else looks after it now.
void DirectoryStoreImpl::disown(uint16_t writer) {
  SeenGeneration& g = generations_[writer];
  kept_bytes_ -= g.kept_here() ? g.bytes : 0;
  g.mine = g.claimed = false;
}

Status DirectoryStoreImpl::new_generation() {
  DI_TRY(check_store_directory(options_.path, false));
  WriterOptions w;
  w.segment_bytes = options_.segment_bytes;
  w.sync = options_.sync;
  w.direct = options_.direct;
  w.limit_bytes_per_s = options_.limit_bytes_per_s;
  // No round of house-keeping between the directory and its place in our books: the round would take it for
  // somebody else's, and what is written there would count for that one while ours seems empty.
  std::lock_guard round(keeper_mutex_);
  DI_ASSIGN(std::shared_ptr<GenerationWriter> fresh, GenerationWriter::create(options_.path, w));
  DI_TRY(fresh->beat(now_s()));
  std::lock_guard lock(mutex_);
  SeenGeneration g;
  g.id = fresh->generation();
  g.path = fresh->path();
  g.mine = true;
  // The one before stays ours to look after.
  if (writer_ != nullptr && last_claim(writer_->path()).number == 0 &&
      !make_claim(writer_->path(), 1, fresh->generation()))
    disown(writer_index_);
  writer_index_ = static_cast<uint16_t>(generations_.size());
  writer_of_[g.id] = writer_index_;
  generations_.push_back(std::move(g));
  DI_CHECK(generations_.size() < UINT16_MAX, "one process saw too many generations");
  writer_ = std::move(fresh);
  return {};
}

Status DirectoryStoreImpl::append_or_rotate(std::vector<NewRecord>* records, uint16_t* writer) {
  std::shared_ptr<GenerationWriter> w;
  bool retry_new = false;
  {
    std::lock_guard lock(mutex_);
    w = writer_;
    *writer = writer_index_;
    retry_new = !trouble_.empty();
  }
  if (w->manifest_bytes() >= options_.manifest_bytes) {
    DI_TRY(new_generation());
    return append_or_rotate(records, writer);
  }
  Status s = w->append(*records);
  bool over = s.code() == Code::kUnavailable || (s.code() == Code::kNotFound && retry_new);
  if (!over) return s;
  {
    std::lock_guard lock(mutex_);
    ++counters_.fenced;
    if (s.code() == Code::kUnavailable) disown(writer_index_);
  }
  DI_TRY(new_generation());
  {
    std::lock_guard lock(mutex_);
    w = writer_;
    *writer = writer_index_;
  }
  return w->append(*records);
}

void DirectoryStoreImpl::note_all(std::vector<ManifestEntry> notes) {
  if (notes.empty()) return;
  std::shared_ptr<GenerationWriter> w;
  {
    std::lock_guard lock(mutex_);
    w = writer_;
    for (const ManifestEntry& e : notes) {
      if (e.type == EntryType::kErase && e.target != w->generation())
        generations_[writer_index_].hides.insert(e.target);
    }
  }
  Status s = w->note(std::move(notes));
  // A lost touch shortens a life, a lost erasure is found again by its checksum: neither is worth more.
  if (!s.ok()) set_trouble(s);
}

void DirectoryStoreImpl::carry_out(std::vector<WriteJob> jobs) {
  std::vector<NewRecord> records;
  std::vector<std::pair<size_t, size_t>> from;  // job, index in it
  std::vector<ManifestEntry> notes;
  std::vector<size_t> visible(jobs.size());
  {
    std::lock_guard lock(mutex_);
    std::set<Name> batch;
    for (size_t j = 0; j < jobs.size(); ++j) {
      notes.insert(notes.end(), jobs[j].notes.begin(), jobs[j].notes.end());
      for (size_t i = 0; i < jobs[j].metas.size(); ++i) {
        const ObjectMeta& m = jobs[j].metas[i];
        // What it follows may have failed or been evicted since its ticket was begun.
        bool parent = m.first || batch.contains({m.parent, Kind::kBlock}) ||
                      index_.find(m.parent, Kind::kBlock) != kNoEntry;
        if (!parent) {
          ++counters_.refused_parent;
          continue;
        }
        batch.insert({m.key, m.kind});
        records.push_back(std::move(jobs[j].records[i]));
        from.push_back({j, i});
      }
    }
  }
  note_all(std::move(notes));
  uint16_t writer = 0;
  Status s = records.empty() ? Status() : append_or_rotate(&records, &writer);
  if (!s.ok()) set_trouble(s);
  {
    std::lock_guard lock(mutex_);
    if (s.ok() && !records.empty()) {
      trouble_.clear();
      retry_wait_ns_ = 0;
      disk_full_ = false;
    }
    for (size_t r = 0; s.ok() && r < records.size(); ++r) {
      const RecordHeader& h = records[r].header;
      ManifestEntry e;
      e.kind = h.kind;
      e.key = h.key;
      e.segment = h.segment;
      e.page = h.page;
      e.payload_bytes = h.payload_bytes;
      e.depth = h.depth;
      e.used_s = h.created_s;
      e.expires_s = records[r].expires_s;
      add_entry(writer, e);
      ++visible[from[r].first];
      ++counters_.committed_objects;
      counters_.committed_bytes += h.payload_bytes;
    }
    for (const WriteJob& job : jobs) {
      staged_bytes_ -= job.bytes;
      for (const ObjectMeta& m : job.metas) pending_.erase(Name(m.key, m.kind));
    }
  }
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (jobs[j].done) jobs[j].done(s, visible[j]);
  }
}

void DirectoryStoreImpl::run_writer() {
  constexpr int64_t kBatchBytes = int64_t{8} << 20;
  for (;;) {
    std::vector<WriteJob> jobs;
    {
      std::unique_lock lock(mutex_);
      jobs_changed_.wait(lock, [this] { return stop_writer_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      int64_t bytes = 0;
      while (!jobs_.empty() && bytes < kBatchBytes) {
        if (bytes > 0 && bytes + jobs_.front().bytes > options_.segment_bytes) break;
        bytes += jobs_.front().bytes;
        jobs.push_back(std::move(jobs_.front()));
        jobs_.pop_front();
      }
      writing_ = true;
    }
    carry_out(std::move(jobs));
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    jobs_done_.notify_all();
  }
}

void DirectoryStoreImpl::flush() {
  std::unique_lock lock(mutex_);
  jobs_done_.wait(lock, [this] { return jobs_.empty() && !writing_; });
}

Status DirectoryStoreImpl::self_check() {
  uint64_t unique = 0;
  {
    std::lock_guard lock(mutex_);
    unique = writer_ != nullptr ? writer_->generation() : 0;
  }
  return check_by_use(this, unique);
}

}  // namespace deepinfer::store
