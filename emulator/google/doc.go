// Package google finds Google's official Firestore emulator on this machine and
// runs it with bounded memory, on loopback.
//
// Guaranteed: the emulator listens on 127.0.0.1 only. Its heap never exceeds the
// bound given to [Start]; when that is exhausted it ends. Start returns an
// emulator that has bound its port itself: another process that answers on that
// port is not mistaken for it. The emulator ends with the process that started
// it, however that process ends: Stop, return from main, os.Exit, panic, SIGKILL.
//
// Not guaranteed: that the emulator behaves as production does (it ignores
// missing indexes and quotas); that memory outside the Java heap (about 150 MB) is
// bounded as tightly.
//
// Needed: Linux or macOS, /bin/sh, a Java runtime, the emulator's jar.
package google
