// Package doctor compares the parts of a deployment (the services' settings, the queue and
// its tasks, the indexes, Cloud Scheduler's jobs, the callers, the accounts' roles) and reports
// settings that together lose or delay work, or let others in. [Read] collects [Facts] from files, Google's
// APIs and the environment; [Check] is a pure function of them.
//
// The package changes nothing, and its output contains no secret, token or password. No
// finding means that the settings agree, not that the work succeeds.
package doctor
