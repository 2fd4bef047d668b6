package operator

// RemoveFound is what a program does that has judged the lock of a file to be stale.
var RemoveFound = removeFound
