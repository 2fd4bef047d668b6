package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/printable"
	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/lease/iso8601"
)

// unlockedRoom is the output of unlock --room --json.
type unlockedRoom struct {
	Room     string    `json:"room"`
	Unlocked bool      `json:"unlocked"` // false: it was not locked
	Was      *heldRoom `json:"lock_was"` // as read just before
}

// heldRoom is the public part of a room's lock.
type heldRoom struct {
	Holder    string `json:"holder"`
	Token     int64  `json:"token"`
	LockedAt  string `json:"locked_at"`
	ExpiresAt string `json:"expires_at"`
}

// unlockRoom releases a room's lock by force. Its holder finds the lock gone, and
// subscribers are notified.
func unlockRoom(ctx context.Context, c *cli.Call, room string) (err error) {
	rooms, in, err := c.Rooms(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rooms.Close()) }()
	if err := cli.Reach(ctx, cli.FirestoreEmulator, in.Emulator, cli.AdviceRestart); err != nil {
		return err
	}
	locks, err := documentlock.New(rooms, 0)
	if err != nil {
		return err
	}
	was, err := locks.Get(ctx, room, "")
	done := unlockedRoom{Room: room}
	if was.Locked {
		done.Was = &heldRoom{was.Lock.Holder, was.Lock.Token, iso8601.Format(was.Lock.LockedAt), iso8601.Format(was.Lock.ExpiresAt)}
	}
	if err == nil {
		done.Unlocked, err = locks.Break(ctx, room)
	}
	if errors.Is(err, lease.ErrInvalidKey) {
		return cli.UsageError("--room: " + strings.TrimPrefix(err.Error(), lease.ErrInvalidKey.Error()+": "))
	}
	if err != nil {
		return err
	}
	// The room's id is a user's input: it is logged as a hash, as the document lock does.
	log := c.Log().With("command", c.Name, "room_hash", documentlock.Hash(room), "project", in.Project,
		"by", operator(), "lock_held", was.Locked, "lock_holder", was.Lock.Holder, "lock_token", was.Lock.Token)
	text := "is unlocked; subscribers are notified"
	if done.Unlocked {
		log.InfoContext(ctx, "changed by an operator")
	} else {
		log.InfoContext(ctx, "it was not locked: nothing is changed")
		text = "is free: it was not locked"
	}
	if c.JSON {
		return c.PrintJSON(done)
	}
	_, err = fmt.Fprintf(c.Out, "room %s %s\n", printable.Line(done.Room), text)
	return err
}
