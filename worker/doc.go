// Package worker guards the work of a service: each piece of work runs once at a time and
// finishes once, however often Cloud Tasks delivers it and whichever instance Cloud Run
// kills.
package worker
