// Package fleet runs workers as processes of this machine, as Cloud Run would
// run instances, and spreads deliveries over them.
//
// A process is started with a pipe as its standard input, whose other end is
// the parent's alone: however the parent ends, the pipe closes, and the worker
// ends too.
package fleet
