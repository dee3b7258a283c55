// Files that are read through memory, and what another program does to them meanwhile.
//
// Reading a page that lies past the end of a file which was cut short is SIGBUS, which ends the process. A file that is
// guarded has zeros there instead, in every mapping of it, whoever made it, and its guard says so: what was computed is
// then refused by the host. On systems without /proc/self/maps nothing is guarded.
#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define EDGE_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// How often zeros were put in place of pages: what a host looks at after each step.
EDGE_EXPORT std::atomic<int> edge_torn{0};

#if defined(__linux__)
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace {

constexpr int kGuards = 128;
constexpr char kMappings[] = "/proc/self/maps";

struct Guard {
  std::atomic<uintptr_t> page{0};  // where one page of the file is mapped: what finds its other mappings; 0: free
  std::atomic<bool> torn{false};   // whether zeros stand for pages that are gone
  int file = -1;
  bool times = false;
  struct stat was {};
};

// What a line of /proc/self/maps says. inode: 0 of memory that is no file's.
struct Mapping {
  uintptr_t start, end;
  uint64_t device, inode;

  bool has(uintptr_t address) const { return start <= address && address < end; }
};

Guard guards[kGuards];
std::atomic<int> reached{0};  // guards from this one on were never used
std::mutex changing;  // which guards there are, and what handles the signal
struct sigaction previous;
std::atomic<uintptr_t> passed_on{0};  // the address of the last fault that was not of a guarded file
size_t page_size = 0;

// Calls `visit` with every mapping of this process. A signal handler may: nothing is allocated. False where the system
// does not say.
template <typename Visit>
bool EachMapping(Visit visit) {
  const int file = open(kMappings, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  enum { kStart, kEnd, kRights, kOffset, kDevice, kInode, kPath };
  char text[2048];
  Mapping found{};
  int field = kStart;
  for (ssize_t size; (size = read(file, text, sizeof text)) > 0;) {
    for (ssize_t i = 0; i < size; i++) {
      const char c = text[i];
      if (c == '\n') {
        visit(found);
        found = {};
        field = kStart;
      } else if (field < kPath && (c == ' ' || (field == kStart && c == '-'))) {
        field++;
      } else if (field != kRights && field != kOffset && field != kPath && c != ':') {
        const uint64_t digit = c <= '9' ? c - '0' : c - 'a' + 10;
        if (field == kStart) found.start = found.start * 16 + digit;
        if (field == kEnd) found.end = found.end * 16 + digit;
        if (field == kDevice) found.device = found.device * 16 + digit;
        if (field == kInode) found.inode = found.inode * 10 + digit;
      }
    }
  }
  close(file);
  return true;
}

// Puts zeros from a page of a guarded file that is gone to the end of its mapping. False where it is no such page.
bool Mend(uintptr_t address) {
  Mapping fault{}, of[kGuards] = {};
  const bool said = EachMapping([&](const Mapping& mapping) {
    if (mapping.has(address)) fault = mapping;
    for (int i = 0; i < reached; i++)
      if (mapping.has(guards[i].page)) of[i] = mapping;
  });
  if (!said || !fault.end) return false;
  if (!fault.inode) return true;  // another thread has put zeros there
  bool ours = false;
  for (int i = 0; i < reached; i++) {
    if (of[i].inode != fault.inode || of[i].device != fault.device) continue;
    guards[i].torn = ours = true;
  }
  if (!ours) return false;
  edge_torn++;
  const uintptr_t start = address / page_size * page_size;
  return mmap(reinterpret_cast<void*>(start), fault.end - start, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

void EndBy(int signal) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
}

void OnFault(int signal, siginfo_t* info, void* context) {
  const int kept = errno;
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code == BUS_ADRERR && Mend(address)) {
    errno = kept;
    return;
  }
  // A handler that was installed later gives way to this one, and raises the signal again: so does the fault itself.
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) return;
  const bool again = info->si_code > 0 && passed_on.exchange(address) == address;
  if (again || previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    EndBy(signal);
    if (info->si_code <= 0) raise(signal);  // a fault comes again by itself
  } else if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else {
    previous.sa_handler(signal);
  }
  errno = kept;
}

// Lets `OnFault` handle the signal, before whatever handles it now.
void Install() {
  struct sigaction now {};
  sigaction(SIGBUS, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == OnFault) return;
  previous = now;
  struct sigaction ours {};
  ours.sa_sigaction = OnFault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

bool Changed(const Guard& guard) {
  struct stat is;
  if (guard.torn || fstat(guard.file, &is)) return true;
  return is.st_size != guard.was.st_size ||
         (guard.times && (is.st_mtim.tv_sec != guard.was.st_mtim.tv_sec ||
                          is.st_mtim.tv_nsec != guard.was.st_mtim.tv_nsec));
}

}  // namespace

// Guards an open file, which stays open until `edge_unguard`; the number of its guard, or -1 where it cannot be
// guarded. times: whether it is another file once its time of change is another.
EDGE_EXPORT int edge_guard(int file, int times) {
  struct stat is;
  if (fstat(file, &is) || !is.st_size || access(kMappings, R_OK)) return -1;
  const std::lock_guard<std::mutex> lock(changing);
  for (int i = 0; i < kGuards; i++) {
    Guard& guard = guards[i];
    if (guard.page) continue;
    page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* page = mmap(nullptr, page_size, PROT_NONE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) return -1;
    Install();
    guard.file = file;
    guard.times = times;
    guard.was = is;
    guard.torn = false;
    guard.page = reinterpret_cast<uintptr_t>(page);
    reached = std::max(reached.load(), i + 1);
    return i;
  }
  return -1;
}

EDGE_EXPORT void edge_unguard(int number) {
  const std::lock_guard<std::mutex> lock(changing);
  munmap(reinterpret_cast<void*>(guards[number].page.exchange(0)), page_size);
}

// Whether a guarded file is not what it was: of this guard, or of any where the number is -1.
EDGE_EXPORT int edge_changed(int number) {
  if (number >= 0) return Changed(guards[number]);
  for (int i = 0; i < reached; i++)
    if (guards[i].page && Changed(guards[i])) return 1;
  return 0;
}
#else
EDGE_EXPORT int edge_guard(int, int) { return -1; }
EDGE_EXPORT void edge_unguard(int) {}
EDGE_EXPORT int edge_changed(int) { return 0; }
#endif
