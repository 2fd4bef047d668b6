package operate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"taskguard/cmd/taskguard/cli"
	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/lease/iso8601"
	"taskguard/worker/printable"
)

// unlockedRoom is what unlock --room prints with --json.
type unlockedRoom struct {
	Room     string    `json:"room"`
	Unlocked bool      `json:"unlocked"` // false: nobody held it
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
	e := c.Environment()
	address := e.Address(cli.FirestoreEmulator)
	if err := cli.Check(e); err != nil {
		return err
	}
	if err := cli.Reach(ctx, cli.FirestoreEmulator, address, cli.AdviceRestart); err != nil {
		return err
	}
	rooms, in, err := c.Rooms(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rooms.Close()) }()
	locks, err := documentlock.New(rooms, 0)
	if err != nil {
		return err
	}
	done, err := breakRoom(ctx, locks, room)
	if errors.Is(err, lease.ErrInvalidKey) {
		return cli.UsageError("--room: " + strings.TrimPrefix(err.Error(), lease.ErrInvalidKey.Error()+": "))
	}
	if err != nil {
		return err
	}
	logRoom(ctx, c, in.Project, done)
	if c.JSON {
		return c.PrintJSON(done)
	}
	text := "is free: nobody held it"
	if done.Unlocked {
		text = "is unlocked; subscribers are notified"
	}
	_, err = fmt.Fprintf(c.Out, "room %s %s\n", printable.Line(done.Room), text)
	return err
}

// breakRoom reads the lock and releases it.
func breakRoom(ctx context.Context, locks *documentlock.Locks, room string) (done unlockedRoom, err error) {
	done.Room = room
	was, err := locks.Get(ctx, room, "")
	if err != nil {
		return done, err
	}
	if was.Locked {
		done.Was = &heldRoom{
			Holder: was.Lock.Holder, Token: was.Lock.Token,
			LockedAt: iso8601.Format(was.Lock.LockedAt), ExpiresAt: iso8601.Format(was.Lock.ExpiresAt),
		}
	}
	done.Unlocked, err = locks.Break(ctx, room)
	return done, err
}

// logRoom logs the change. The room's id is a user's input, so it is logged as a hash,
// as the document lock itself does.
func logRoom(ctx context.Context, c *cli.Call, project string, done unlockedRoom) {
	attrs := []any{
		"command", c.Name, "room_hash", documentlock.Hash(done.Room),
		"project", project, "by", operator(), "lock_held", done.Was != nil,
	}
	if done.Was != nil {
		attrs = append(attrs, slog.String("lock_holder", done.Was.Holder), slog.Int64("lock_token", done.Was.Token))
	}
	if done.Unlocked {
		c.Log().WarnContext(ctx, "changed by an operator", attrs...)
	} else {
		c.Log().InfoContext(ctx, "nobody held it: nothing is changed", attrs...)
	}
}
