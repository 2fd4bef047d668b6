// Package sidecar holds the test of service.sh, an example of a worker with an
// application in another language as its sidecar.
package sidecar
