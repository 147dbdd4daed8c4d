// Linked into every program of a sanitizer build. LibTorch is not instrumented: what it allocates once and keeps, and
// the locks and atomics inside it, are no findings about this project. Environment variables still override these.
extern "C" {

const char* __asan_default_options() { return "detect_odr_violation=0:strict_init_order=1"; }

const char* __lsan_default_suppressions() {
  return "leak:libtorch_cpu.so\n"
         "leak:libc10.so\n"
         "leak:libgomp\n"
         "leak:libcudart.so\n"
         "leak:libcupti.so\n";
}

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1:second_deadlock_stack=1"; }

const char* __tsan_default_suppressions() {
  return "called_from_lib:libtorch_cpu.so\n"
         "called_from_lib:libgomp.so\n"
         "race:libtorch_cpu.so\n";
}
}
