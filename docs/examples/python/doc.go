// Package python holds the tests of the examples in Python: of submit.py on imitations of
// Google's packages, which run if REQUIRE_PYTHON is set (to anything but "" or "0"), and of
// emulator_test.py on the packages google-cloud-firestore and google-cloud-tasks, which also
// needs REQUIRE_PYTHON_CLIENTS.
package python
