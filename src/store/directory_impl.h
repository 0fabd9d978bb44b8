// The parts of DirectoryStore that its files share. Private to the store.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "store/directory_store.h"
#include "store/follower.h"
#include "store/generation.h"
#include "store/reader.h"

namespace deepinfer::store {

// One generation as this process sees it.
struct SeenGeneration {
  uint64_t id = 0;
  std::string path;
  FollowState follow;
  policy::OwnerWatch watch;
  bool mine = false;         // written by this process, now or before a change of generation
  bool claimed = false;      // its owner is gone and this process looks after it
  std::set<uint64_t> hides;  // other generations of which its manifest says that something is erased
  bool scanned = false;      // its segments were read because its manifest is damaged
  bool gone = false;         // its directory is not there any more
  int64_t objects = 0, bytes = 0;
  std::map<uint32_t, int64_t> live;  // objects per segment
  bool kept_here() const { return mine || claimed; }
};

struct Lease {
  std::vector<EntryId> entries;
  policy::ReadLease time;
};

struct OpenTicket {
  std::vector<ObjectMeta> metas;
  std::vector<NewRecord> records;  // of the wanted ones; an empty buffer: not wanted
  int64_t bytes = 0, begun_ns = 0;
};

// What is read of a record in one go.
enum class Piece : uint8_t { kWhole, kFirst, kRest };

struct PartState {
  RecordHeader want;  // what must lie there
  uint16_t writer = 0;
  bool split = false;                          // read in two pieces
  RecordHeader head;                           // as it was read, with the first piece of two
  bool came_first = false, came_rest = false;  // in place, of two pieces
  bool first = false, rest = false;            // in place and checked
  bool counted = false;                        // in FetchState::first_open
};

struct FetchState {
  std::mutex mutex;
  std::vector<FetchPart> parts;
  std::vector<PartState> states;  // of the leading parts that are there
  int64_t split = 0;
  size_t open = 0;        // reads that have not ended
  size_t first_open = 0;  // parts whose beginning is not in place and checked
  int writing = 0;        // pieces that are being copied to their places
  std::condition_variable idle;
  bool closed = false;      // `done` was called or is about to be
  bool said_first = false;  // `first` was called or is about to be
  Status why;
  int64_t begun_ns = 0;
  LeaseId lease{};
  // Reads of parts from here on need not begin.
  std::shared_ptr<std::atomic<size_t>> limit = std::make_shared<std::atomic<size_t>>(SIZE_MAX);
  std::mutex calls;  // `first` and `done` come one after the other
  std::function<void(int64_t)> first;
  std::function<void(const FetchOutcome&)> done;
};

struct WriteJob {
  std::vector<ObjectMeta> metas;
  std::vector<NewRecord> records;
  std::function<void(Status, size_t)> done;
  int64_t bytes = 0;                 // of staging memory
  std::vector<ManifestEntry> notes;  // erasures and touches
};

struct PunchLater {
  int64_t due_ns = 0;
  uint16_t writer = 0;
  uint32_t segment = 0, page = 0, payload_bytes = 0;
};

class DirectoryStoreImpl final : public DirectoryStore {
 public:
  explicit DirectoryStoreImpl(const DirectoryOptions& options);
  ~DirectoryStoreImpl() override;
  Status start();

  Match match(std::span<const Key> chain) override;
  bool contains(Kind kind, const Key& key) override;
  bool renew(LeaseId lease) override;
  void release(LeaseId lease) override;
  FetchId fetch(Fetch fetch) override;
  void cancel(FetchId fetch) override;
  Result<Ticket> begin(std::vector<ObjectMeta> objects) override;
  void write(const Ticket& ticket, size_t i, std::span<const uint8_t> payload) override;
  void commit(const Ticket& ticket, std::function<void(Status, size_t)> done) override;
  void abort(const Ticket& ticket) override;
  void touch(std::span<const Key> chain, bool agent, const policy::TtlWish& wish) override;
  void invalidate(Kind kind, const Key& key, const std::string& reason) override;
  std::vector<StoredName> recent(Kind kind, int64_t payload_bytes, size_t most) override;
  void flush() override;
  Counters counters() const override;
  Gauges gauges() const override;
  Status self_check() override;
  void keep_house() override;
  std::vector<ListedObject> list(size_t most) override;
  int64_t shrink(int64_t bytes) override;
  uint32_t now_s() const override;
  int64_t payload_of(Kind kind, const Key& key) const override;
  int64_t reads_waiting() const override { return reader_->queued(); }

 private:
  using Name = std::pair<Key, Kind>;

  int64_t monotonic() const { return options_.monotonic ? options_.monotonic() : default_monotonic(); }
  static int64_t default_monotonic();
  void read_clock(int64_t floor_s);

  // With mutex_ held.
  void lease_entry(EntryId id, std::vector<EntryId>* leased);
  LeaseId new_lease(std::vector<EntryId> leased);
  void end_lease(LeaseId id);
  void remove_entry(EntryId id, policy::ObjectEvent why);
  EntryId add_entry(uint16_t writer, const ManifestEntry& entry);
  void apply_entry(uint16_t writer, const ManifestEntry& entry);
  void erase(EntryId id, policy::ObjectEvent why);  // from here, and for everybody when it is kept here
  void queue_note(ManifestEntry note);
  bool have_parent(const ObjectMeta& meta) const;
  bool has(const ObjectMeta& meta);  // one whose life is over goes
  int64_t ttl_of(Kind kind, bool agent, const policy::TtlWish& wish) const;
  bool holds_lease(LeaseId id) const;

  // Reads.
  Result<std::shared_ptr<const File>> file_of(uint16_t writer, uint32_t segment);
  void find_parts(FetchState* f);  // mutex_ held
  bool begin_writing(FetchState* f);
  Status put_piece(FetchState* f, size_t i, Piece piece, std::span<const uint8_t> bytes);
  Status put_whole(FetchState* f, size_t i, std::span<const uint8_t> bytes);
  Status put_half(FetchState* f, size_t i, Piece piece, std::span<const uint8_t> bytes);
  void take_piece(const std::shared_ptr<FetchState>& f, size_t i, Piece piece, Status status,
                  std::span<const uint8_t> bytes);
  void say_first(const std::shared_ptr<FetchState>& f);
  void end_fetch(const std::shared_ptr<FetchState>& f);

  // Writes (the writer's thread).
  void run_writer();
  void carry_out(std::vector<WriteJob> jobs);
  Status append_or_rotate(std::vector<NewRecord>* records, uint16_t* writer);
  Status new_generation();
  void disown(uint16_t writer);  // mutex_ held
  void note_all(std::vector<ManifestEntry> notes);
  void set_trouble(const Status& why);

  // House-keeping.
  void run_keeper();
  void find_generations();
  void follow(size_t i);
  void follow_all();
  void watch_owners();
  void recover(size_t i);
  void expire_and_evict(bool sweep);
  void one_round(bool sweep);
  void free_space(bool all);
  void drop_generation(size_t i);
  bool needed(const SeenGeneration& g) const;  // mutex_ held
  void end_old_leases();
  int64_t evict(int64_t bytes);

  DirectoryOptions options_;
  mutable std::mutex mutex_;
  Index index_;
  policy::StoreClock clock_;
  std::deque<SeenGeneration> generations_;  // by IndexEntry::writer; never shrinks
  std::map<uint64_t, uint16_t> writer_of_;  // by generation
  std::unordered_map<uint64_t, Lease> leases_;
  std::unordered_map<uint64_t, std::shared_ptr<FetchState>> fetches_;
  std::unordered_map<uint64_t, OpenTicket> tickets_;
  std::set<Name> pending_;  // reserved or queued, not visible yet
  uint64_t last_id_ = 0;
  int64_t held_bytes_ = 0, kept_bytes_ = 0, blocks_ = 0, windows_ = 0;
  int64_t staged_bytes_ = 0;
  Counters counters_;
  int64_t gc_age_s_ = 0;
  int64_t kept_since_ns_ = 0;  // up to when kept_megabyte_s is counted
  double kept_rest_ = 0;       // what of it is no whole megabyte-second yet
  std::string trouble_;
  int64_t retry_ns_ = 0, retry_wait_ns_ = 0;
  bool disk_full_ = false;
  std::vector<PunchLater> punches_;

  std::deque<WriteJob> jobs_;
  std::condition_variable jobs_changed_, jobs_done_;
  bool writing_ = false, stop_writer_ = false;
  std::shared_ptr<GenerationWriter> writer_;  // replaced by the writer's thread, with mutex_ held
  uint16_t writer_index_ = 0;

  std::mutex files_mutex_;
  std::map<std::pair<uint16_t, uint32_t>, std::shared_ptr<const File>> files_;
  std::unique_ptr<Reader> reader_;

  std::mutex keeper_mutex_;  // one round of house-keeping at a time
  std::condition_variable keeper_changed_;
  bool stop_keeper_ = false;
  int64_t beat_ns_ = 0, swept_ns_ = 0;  // the keeper's thread
  std::thread writer_thread_, keeper_thread_;
};

}  // namespace deepinfer::store
