package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"taskguard/repo"
)

// Bounds of asking whether an emulator is there.
const (
	dialTimeout = 3 * time.Second
	pingTimeout = 5 * time.Second
)

// checkEmulator refuses an address that is not host:port. None is fine.
func checkEmulator(name, address string) error {
	if address == "" {
		return nil
	}
	if _, bare, found := strings.Cut(address, "://"); found {
		return fmt.Errorf("%s: %q is not host:port; drop the scheme: %s", name, address, strings.TrimRight(bare, "/"))
	}
	host, port, err := net.SplitHostPort(address)
	if number, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" || number == 0 {
		return fmt.Errorf("%s: %q is not host:port", name, address)
	}
	return nil
}

// reach tells at once where nothing listens; the clients of Google's libraries
// try again for long. name is the variable that holds address; no address is
// fine.
func reach(ctx context.Context, name, address, advice string) error {
	if address == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("nothing answers at %s: %s; %s", address, reason(err), fmt.Sprintf(advice, name))
	}
	_ = conn.Close() // nothing was sent
	return nil
}

// advice on a dead emulator; %s is the variable that names it.
const (
	adviceRestart  = "%s names it: start the emulator, or correct or unset the variable"
	adviceEmbedded = "unset %s to use the embedded Firestore"
)

// usingEmulator is said first, since a variable left over from another session
// is easily overlooked.
const usingEmulator = "using the emulator at %s, from " + firestoreEmulator

// reason is why a connection was not made, without the address, which is told
// already.
func reason(err error) string {
	var number syscall.Errno
	var unknown *net.DNSError
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &unknown):
		return unknown.Err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no connection within %v", dialTimeout)
	}
	return err.Error()
}

// answers checks that the emulator of p, if it has one, is a Firestore.
func (p place) answers(ctx context.Context) (err error) {
	if p.emulator == "" {
		return nil
	}
	if err := reach(ctx, firestoreEmulator, p.emulator, adviceEmbedded); err != nil {
		return err
	}
	analyses, err := p.open(ctx, repo.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, analyses.Close()) }()
	pinging, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := analyses.Ping(pinging); err != nil {
		advice := fmt.Sprintf(adviceEmbedded, firestoreEmulator)
		return fmt.Errorf("no Firestore answers at %s: %s; %s", p.emulator, strings.ReplaceAll(err.Error(), "\n", " "), advice)
	}
	return nil
}
