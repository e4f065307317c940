// Keeps the libraries of a wheel loadable with the C library of PyTorch's own wheels (glibc 2.28), though they are
// compiled on a newer system: what is newer there is answered here. g++'s static library needs the first (2.32), the
// kernels the second (2.29, whose older form differs only in how it reports errors).

extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

double older_log(double) noexcept;
__asm__(".symver older_log, log@GLIBC_2.2.5");
__attribute__((visibility("hidden"))) double __wrap_log(double x) noexcept { return older_log(x); }
}
