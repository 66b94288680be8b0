// Loads a kernel, reads a job, runs the launch, writes the outputs back and prints what there is to
// report: "runner KERNEL JOB".
//
// The job is a text file: "check count seed", "grid x y z", "threadgroup x y z", then for each
// buffer in the order of the signature "path bytes element kind role name", where kind is "float"
// for what can be NaN, else "other", and role is "input",
// "constant" (an input that causes no traffic), "output" (its contents undefined) or "inout" (an
// output with initial contents).
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "checks.h"
#include "traffic.h"

namespace sim {

uint64_t run_launch(Kernel kernel, void** buffers);

struct File {
  std::string path;
  size_t bytes;
  unsigned element;
  std::string kind, role, name;

  bool output() const { return role == "output" || role == "inout"; }
  bool initialised() const { return role != "output"; }
};

static std::vector<File> read_job(const char* path) {
  FILE* job = fopen(path, "r");
  int check, count;
  unsigned *g = launch.grid, *t = launch.threadgroup;
  if (job == nullptr ||
      fscanf(job, "%d %d %u grid %u %u %u threadgroup %u %u %u", &check, &count, &launch.seed,
             &g[0], &g[1], &g[2], &t[0], &t[1], &t[2]) != 9)
    exit(3);
  launch.check = check;
  launch.count = count;
  for (int d = 0; d < 3; d++) {
    t[d] = std::min(t[d], g[d]);
    launch.groups[d] = (g[d] + t[d] - 1) / t[d];
  }
  std::vector<File> files;
  char file[4096], kind[16], role[16], name[256];
  size_t bytes;
  unsigned element;
  while (fscanf(job, "%4095s %zu %u %15s %15s %255s", file, &bytes, &element, kind, role, name) == 6)
    files.push_back({file, bytes, element, kind, role, name});
  fclose(job);
  return files;
}

static void read_file(const File& file, char* to) {
  const int fd = open(file.path.c_str(), O_RDONLY);
  for (size_t done = 0; done < file.bytes;) {
    const ssize_t n = read(fd, to + done, file.bytes - done);
    if (n <= 0) exit(3);
    done += n;
  }
  close(fd);
}

static void write_file(const File& file, const char* from) {
  const int fd = open(file.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (size_t done = 0; done < file.bytes;) {
    const ssize_t n = write(fd, from + done, file.bytes - done);
    if (n <= 0) exit(3);
    done += n;
  }
  close(fd);
}

static void print_results(double seconds, uint64_t groups) {
  reports.print(stdout);
  printf("seconds\t%.6f\n", seconds);
  printf("groups\t%lu\nthreadgroup_bytes\t%zu\n", groups, memory.threadgroup_bytes);
  printf("barriers\t%lu\nsimdgroup_functions\t%lu\n", traffic.barriers,
         traffic.simdgroup_functions);
  if (launch.count) {
    traffic.cache.flush();
    printf("requested_read\t%lu\nrequested_written\t%lu\n", traffic.requested[0],
           traffic.requested[1]);
    printf("cache_read\t%lu\ncache_written\t%lu\n", traffic.cache.read, traffic.cache.written);
    printf("loads\t%lu\nloads_coalesced\t%lu\nload_lines\t%lu\n", traffic.accesses[0],
           traffic.coalesced[0], traffic.lines[0]);
    printf("stores\t%lu\nstores_coalesced\t%lu\nstore_lines\t%lu\n", traffic.accesses[1],
           traffic.coalesced[1], traffic.lines[1]);
    printf("most_loads\t%u\nmost_phases\t%u\n", traffic.most_loads, traffic.most_phases);
  }
  fflush(stdout);
}

static void give_up() {
  printf("crashed\t1\n");
  print_results(0, 0);
  _exit(0);
}

// An access to an unmapped page, or what the CPU refuses: tells where and ends the run.
static void handle_fault(int signal, siginfo_t* info, void* context) {
  uintptr_t at = 0;
#if defined(__x86_64__)
  at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  at = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
  const uintptr_t pc = launch.in_file(reinterpret_cast<void*>(at));
  if (signal == SIGFPE) {
    report(SPECIFICATION, "arithmetic", "", NOWHERE, pc, "integer division by zero or overflow");
    give_up();
  }
  if (signal == SIGILL) {
    report(ERROR, "bounds", "", NOWHERE, pc,
           "access beyond a private array or vector, or what else the compiler knows to be a fault");
    give_up();
  }
  const char* address = static_cast<char*>(info->si_addr);
  const char* stacks = launch.stacks;
  const bool in_stacks =
      address >= stacks && address < stacks + launch.fibers.size() * (STACK + GUARD);
  if (const Region* region = memory.buffer_of(address)) {
    report(ERROR, "bounds", region->name, NOWHERE, pc,
           format("access out of bounds at byte %ld of buffer '%s', which has %zu",
                  static_cast<long>(address - region->base), region->name.c_str(),
                  region->bytes));
  } else {
    report(ERROR, "bounds", "", NOWHERE, pc,
           in_stacks ? "a thread's private memory exceeds its stack of 256 KiB"
                     : "access to an address outside all buffers");
  }
  give_up();
}

static void catch_faults() {
  static char alternate[64 << 10];
  stack_t stack = {};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = handle_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
}

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// The kernel's function in the library that was compiled from it.
static Kernel load(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  void* kernel = library ? dlsym(library, "sim_kernel") : nullptr;
  if (kernel == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  auto find = [](dl_phdr_info* info, size_t, void* kernel) {
    const char* base = reinterpret_cast<const char*>(info->dlpi_addr);
    size_t size = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
      if (const auto& part = info->dlpi_phdr[i]; part.p_type == PT_LOAD)
        size = std::max<size_t>(size, part.p_vaddr + part.p_memsz);
    if (kernel < base || kernel >= base + size) return 0;
    launch.library = base;
    launch.library_end = base + size;
    return 1;
  };
  dl_iterate_phdr(find, kernel);
  return reinterpret_cast<Kernel>(kernel);
}

// Of no use where an input brings the NaN by which it is told, or memory that nobody wrote does,
// which has been reported.
static void report_unset(const std::vector<File>& files) {
  if (reports.hold("uninitialised") || reports.hold("undefined-lane")) return;
  for (size_t i = 0; i < files.size(); i++)
    if (files[i].initialised() && files[i].kind == "float" &&
        checker.holds_poison(memory.buffers[i]))
      return;
  for (size_t i = 0; i < files.size(); i++)
    if (files[i].output() && files[i].kind == "float") checker.report_unset(memory.buffers[i]);
}

static int run(const char* library, const char* job) {
  const std::vector<File> files = read_job(job);
  size_t largest = 0;
  for (const File& file : files) largest = std::max(largest, file.bytes);
  memory.lay_out(files.size(), largest);
  std::vector<void*> buffers;
  for (const File& file : files) {
    Region& region = memory.add_buffer(
        file.name, file.bytes, file.element, !file.output(), file.initialised());
    region.counted = file.role != "constant";
    if (file.initialised())
      read_file(file, region.base);
    else
      memset(region.base, POISON, file.bytes);
    buffers.push_back(region.base);
  }
  if (launch.count) traffic.start();
  const Kernel kernel = load(library);
  catch_faults();
  const double began = now();
  const uint64_t groups = run_launch(kernel, buffers.data());
  const double seconds = now() - began;
  for (size_t i = 0; i < files.size(); i++) {
    if (!files[i].output()) continue;
    write_file(files[i], memory.buffers[i].base);
    if (launch.check) checker.report_unwritten(memory.buffers[i]);
  }
  if (launch.check) report_unset(files);
  print_results(seconds, groups);
  return 0;
}

}  // namespace sim

int main(int, char** arguments) { return sim::run(arguments[1], arguments[2]); }
