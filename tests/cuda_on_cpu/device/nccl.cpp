// libnccl.so.2: collectives and messages between emulated GPUs of one machine, in threads or in processes.
//
// An operation posts what it sends when its stream comes to it, and is over when that of all ranks has come. Ranks that
// make different calls are told so, which the real NCCL need not notice.
#include <ctime>
#include <map>
#include <set>
#include <vector>

#include "device.hpp"
#include "meeting.hpp"

using namespace device;

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Result { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, LIMIT_S = 600 };
enum Operation { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECV };
const char *const names[] = {"allReduce", "reduce", "broadcast", "reduceScatter", "allGather", "send", "recv"};

struct Id {
    char folder[128];
};

struct Comm {
    Meeting meeting;
    int size, rank, device;
    long collectives = 0;
    std::map<int, long> sent, received;
    std::vector<std::string> left = {};  // files of the last group that others may still read
    std::vector<std::string> posted = {};  // those of the group under way
    std::set<Handle> streams = {};
    bool ended = false;
    std::string error = "";
};

struct Call {
    Operation operation;
    const void *send;
    void *recv;
    size_t count;
    int type, root;  // root: of messages, the other rank
    std::vector<std::string> files = {};  // whose coming is waited for
    std::string own = {};
};

std::string last_error;
int next_status;

size_t width(int type) {
    constexpr size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8};
    return type < 0 || type > 8 ? 0 : widths[type];
}

template <class T>
void add(void *to, const void *from, size_t count) {
    for (size_t i = 0; i < count; ++i) ((T *)to)[i] = T(((T *)to)[i] + ((const T *)from)[i]);
}

void add(void *to, const void *from, size_t count, int type) {
    using Add = void (*)(void *, const void *, size_t);
    constexpr Add adders[] = {add<int8_t>, add<uint8_t>, add<int32_t>, add<uint32_t>, add<int64_t>,
                              add<uint64_t>, add<_Float16>, add<float>, add<double>};
    adders[type](to, from, count);
}

bool sends(const Comm &comm, const Call &call) { return call.operation != BROADCAST || comm.rank == call.root; }

// What all ranks must agree on.
std::string agreed(const Call &call) {
    return std::string(names[call.operation]) + " of " + std::to_string(call.count) + " elements of type " +
           std::to_string(call.type) + ", root " + std::to_string(call.root);
}

std::string message(int from, int to, long number) {
    return "message-" + std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number);
}

std::string part(long number, int rank) { return "part-" + std::to_string(number) + "-" + std::to_string(rank); }

void post(Comm &comm, Call &call) {
    size_t nbytes = call.count * width(call.type);
    auto bytes = (const char *)call.send;
    if (call.operation == SEND) {
        call.own = message(comm.rank, call.root, comm.sent[call.root]++);
        comm.meeting.leave(call.own, {bytes, nbytes});
    } else if (call.operation == RECV) {
        call.files = {message(call.root, comm.rank, comm.received[call.root]++)};
    } else {
        long number = comm.collectives++;
        size_t all = call.operation == REDUCE_SCATTER ? nbytes * comm.size : nbytes;
        std::string data = sends(comm, call) ? std::string(bytes, all) : "";
        call.own = part(number, comm.rank);
        comm.meeting.leave(call.own, agreed(call) + "\n" + data);
        for (int rank = 0; rank < comm.size; ++rank) call.files.push_back(part(number, rank));
    }
    if (!call.own.empty()) comm.posted.push_back(call.own);
}

void end_collective(const Comm &comm, const Call &call, const std::vector<std::string> &parts) {
    size_t nbytes = call.count * width(call.type);
    auto to = (char *)call.recv;
    if (call.operation == BROADCAST) {
        std::copy_n(parts[call.root].data(), nbytes, to);
    } else if (call.operation == ALL_GATHER) {
        for (int rank = 0; rank < comm.size; ++rank) std::copy_n(parts[rank].data(), nbytes, to + rank * nbytes);
    } else {
        std::string sum = parts[0];
        for (int rank = 1; rank < comm.size; ++rank)
            add(sum.data(), parts[rank].data(), sum.size() / width(call.type), call.type);
        if (call.operation != REDUCE || comm.rank == call.root)
            std::copy_n(sum.data() + (call.operation == REDUCE_SCATTER ? comm.rank * nbytes : 0), nbytes, to);
    }
}

bool end(Comm &comm, Call &call, std::vector<std::string> found) {
    if (call.operation == RECV) {
        size_t nbytes = call.count * width(call.type);
        comm.meeting.remove(call.files[0]);
        if (found[0].size() != nbytes) {
            comm.error = "mismatch: rank " + std::to_string(call.root) + " to " + std::to_string(comm.rank) + ": " +
                         std::to_string(found[0].size()) + " and " + std::to_string(nbytes) + " bytes";
            return false;
        }
        std::copy_n(found[0].data(), nbytes, (char *)call.recv);
    } else if (call.operation != SEND) {
        for (size_t rank = 0; rank < found.size(); ++rank) {
            auto line = found[rank].find('\n');
            if (found[rank].substr(0, line) != agreed(call)) {
                comm.error = "mismatch: rank " + std::to_string(comm.rank) + " calls " + agreed(call) + "; rank " +
                             std::to_string(rank) + " calls " + found[rank].substr(0, line);
                return false;
            }
            found[rank].erase(0, line + 1);
        }
        end_collective(comm, call, found);
    }
    return true;
}

// Of a group: all its calls begin, then all of them end.
struct Group {
    Comm *comm;
    std::vector<Call> calls;
    bool posted = false;

    bool operator()() {
        if (comm->ended) return true;
        if (!posted)
            for (Call &call : calls) post(*comm, call);
        posted = true;
        if (auto told = comm->meeting.find("error")) comm->error = *told;
        if (!comm->error.empty()) return false;
        std::vector<std::vector<std::string>> found;
        for (Call &call : calls) {
            found.emplace_back();
            for (const std::string &file : call.files) {
                auto bytes = comm->meeting.find(file);
                if (!bytes) return false;
                found.back().push_back(std::move(*bytes));
            }
        }
        for (size_t i = 0; i < calls.size(); ++i)
            if (!end(*comm, calls[i], std::move(found[i]))) {
                comm->meeting.leave("error", comm->error);
                return false;
            }
        comm->posted.clear();
        tidy();
        return true;
    }

    // All ranks have come to this group, so they have done with the one before.
    void tidy() {
        std::vector<std::string> own;
        for (Call &call : calls)
            if (call.operation < SEND) own.push_back(call.own);
        if (own.empty()) return;  // messages alone say nothing about all ranks
        for (const std::string &file : comm->left) comm->meeting.remove(file);
        comm->left = std::move(own);
    }
};

thread_local int depth;
thread_local std::vector<std::pair<Handle, Group>> open_groups;

int launch() {
    auto groups = std::move(open_groups);
    open_groups.clear();
    try {
        for (auto &[stream, group] : groups) {
            group.comm->streams.insert(stream);
            enqueue(stream, std::move(group));
        }
    } catch (const Failure &) {
        last_error = "the stream is not one of the thread's GPU";
        return INVALID_USAGE;
    }
    return OK;
}

int call(Comm *comm, Handle stream, Call made) {
    std::lock_guard held(lock());
    if (int status = next_status) return next_status = 0, status;
    if (comm->ended || !width(made.type) || made.root < 0 || made.root >= comm->size) {
        last_error = comm->ended ? "the communicator has ended" : "a type or a rank that there is not";
        return INVALID_ARGUMENT;
    }
    if (current_device() != comm->device) {
        last_error = "the thread is not on the communicator's GPU";
        return INVALID_USAGE;
    }
    if (made.operation >= SEND && made.root == comm->rank && !depth) {
        last_error = "a message to oneself outside of a group";
        return INVALID_USAGE;
    }
    count(std::string("nccl ") + names[made.operation]);
    if (open_groups.empty() || open_groups.back().second.comm != comm || open_groups.back().first != stream)
        open_groups.emplace_back(stream, Group{comm, {}});
    open_groups.back().second.calls.push_back(std::move(made));
    return depth ? OK : launch();
}

template <class Found>
bool comes(Found found) {
    for (time_t began = time(nullptr); time(nullptr) < began + LIMIT_S;) {
        if (found()) return true;
        timespec pause{0, 1000000};
        nanosleep(&pause, nullptr);
    }
    return false;
}

}  // namespace

// What the next call returns.
extern "C" void cuda_on_cpu_nccl_status(int status) { next_status = status; }

API int ncclGetVersion(int *version) { return *version = 22900, OK; }
API const char *ncclGetErrorString(int status) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited"};
    static thread_local std::string text;
    std::lock_guard held(lock());
    text = status >= 0 && status < 7 ? texts[status] : "unknown result code";
    if (!last_error.empty()) text += ": " + last_error;
    return text.c_str();
}

API int ncclGetUniqueId(Id *id) {
    std::string folder = Meeting::made();
    if (folder.empty() || folder.size() >= sizeof id->folder) return SYSTEM_ERROR;
    *id = {};
    folder.copy(id->folder, folder.size());
    return OK;
}

API int ncclCommInitRankConfig(Comm **made, int size, Id id, int rank, void *) {
    if (rank < 0 || rank >= size) return INVALID_ARGUMENT;
    auto comm = new Comm{Meeting(id.folder), size, rank, current_device()};
    const char *host = std::getenv("NCCL_HOSTID");
    std::string own = std::string(host ? host : "") + " GPU " + std::to_string(on_machine(comm->device));
    comm->meeting.leave("size", std::to_string(size));
    comm->meeting.leave("rank-" + std::to_string(rank), own);
    for (int other = 0; other < size; ++other) {
        std::optional<std::string> found;
        if (!comes([&] { return !!(found = comm->meeting.find("rank-" + std::to_string(other))); }))
            return SYSTEM_ERROR;
        if (other != rank && *found == own) {
            std::lock_guard held(lock());
            last_error = "duplicate" + own;
            return INVALID_USAGE;
        }
    }
    *made = comm;
    return OK;
}

static int ended(Comm *comm) {
    std::lock_guard held(lock());
    if (!comm->ended) comm->meeting.go(comm->rank);
    comm->ended = true;  // kept, as tasks may still refer to it
    return OK;
}
API int ncclCommDestroy(Comm *comm) { return ended(comm); }
API int ncclCommAbort(Comm *comm) {
    std::lock_guard held(lock());
    for (const std::string &file : comm->posted) comm->meeting.remove(file);  // it takes no part any more
    int status = ended(comm);
    for (Handle stream : comm->streams) go_on(stream);  // while the arrays are there
    return status;
}
API int ncclCommGetAsyncError(Comm *comm, int *status) {
    std::lock_guard held(lock());
    if (!comm->error.empty()) last_error = comm->error;
    return *status = comm->error.empty() ? OK : INVALID_USAGE, OK;
}
API int ncclCommCount(const Comm *comm, int *size) { return *size = comm->size, OK; }
API int ncclCommUserRank(const Comm *comm, int *rank) { return *rank = comm->rank, OK; }
API int ncclCommCuDevice(const Comm *comm, int *device) { return *device = comm->device, OK; }
API int ncclCommInitAll(Comm **, int, const int *) { return INVALID_USAGE; }
API int ncclCommSplit(Comm *, int, int, Comm **, void *) { return INVALID_USAGE; }

API int ncclGroupStart() { return ++depth, OK; }
API int ncclGroupEnd() {
    if (!depth) return INVALID_USAGE;
    return --depth ? OK : launch();
}

API int ncclAllReduce(const void *send, void *recv, size_t count, int type, int, Comm *comm, Handle stream) {
    return call(comm, stream, {ALL_REDUCE, send, recv, count, type, 0});
}
API int ncclReduce(const void *send, void *recv, size_t count, int type, int, int root, Comm *comm, Handle stream) {
    return call(comm, stream, {REDUCE, send, recv, count, type, root});
}
API int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, Comm *comm, Handle stream) {
    return call(comm, stream, {BROADCAST, send, recv, count, type, root});
}
API int ncclBcast(void *buffer, size_t count, int type, int root, Comm *comm, Handle stream) {
    return call(comm, stream, {BROADCAST, buffer, buffer, count, type, root});
}
API int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int, Comm *comm, Handle stream) {
    return call(comm, stream, {REDUCE_SCATTER, send, recv, count, type, 0});
}
API int ncclAllGather(const void *send, void *recv, size_t count, int type, Comm *comm, Handle stream) {
    return call(comm, stream, {ALL_GATHER, send, recv, count, type, 0});
}
API int ncclSend(const void *send, size_t count, int type, int peer, Comm *comm, Handle stream) {
    return call(comm, stream, {SEND, send, nullptr, count, type, peer});
}
API int ncclRecv(void *recv, size_t count, int type, int peer, Comm *comm, Handle stream) {
    return call(comm, stream, {RECV, nullptr, recv, count, type, peer});
}
