# Cross-building for 64-bit ARM with Debian's compiler: tests/aarch64.sh, which sets DITTO_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DITTO_SYSROOT)
set(CMAKE_SYSROOT "${DITTO_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)  # protoc and ccache are this machine's
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${DITTO_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${DITTO_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${DITTO_SYSROOT}/usr/share/pkgconfig")
set(DITTO_MOLD OFF CACHE STRING "The cross compiler looks for a linker of its own name")
