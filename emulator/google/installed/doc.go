// Package installed holds the tests that run Google's own Firestore emulator.
// It is a package of its own so that a machine without the emulator shows:
//
//	ok  	taskguard/emulator/google/installed	0.01s [no tests to run]
//
// With REQUIRE_GOOGLE_EMULATOR set (to anything but "" or "0") its absence is a
// failure instead.
package installed
