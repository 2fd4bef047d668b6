// Package doctor compares what a deployment is made of (the services'
// environments and settings, the queue, the database's indexes, Cloud Scheduler's
// jobs, who may call) and says what contradicts what, before it costs a run.
//
// [Read] gathers [Facts] from files, from Google's APIs and from a process's
// environment; [Check] is a pure function of them. What was not read is no
// finding: [Check] says which of its rules it left out for it, and why.
//
// It changes nothing, and shows no value of a secret, no token and no password of
// a URL. That nothing is found says that the settings agree, not that the work
// succeeds.
package doctor
