// Package google finds Google's official Firestore emulator on this machine and
// runs it with bounded memory, on loopback.
//
// Guaranteed: the emulator listens on 127.0.0.1 only. Its heap never passes
// [Options].MaxHeap; when that is exhausted it ends rather than limp on. Start
// returns an emulator that has bound its port itself: another process that
// answers on that port is never taken for it. The emulator ends with the process
// that started it, however that process ends: Stop, return from main, os.Exit,
// panic, SIGKILL. Nothing is written outside the emulator's memory, and only
// processes started here are signalled, by their process group.
//
// How it ends with its parent: it runs in a process group led by a small shell
// that reads from a pipe only the parent holds open for writing. When the parent
// is gone the kernel closes the pipe, the shell reads end of file and kills its
// own group. That works alike on Linux and macOS, and does not depend on an
// operating system thread as a parent-death signal would.
//
// Not guaranteed: that the emulator ends when that shell is killed first and the
// parent after it; that the emulator behaves as production does (it ignores
// missing indexes, quotas and contention timings); that memory outside the Java
// heap (code, threads, network buffers: about 150 MB) is bounded as tightly.
//
// Needed: Linux or macOS, /bin/sh, a Java runtime, the emulator's jar.
package google
