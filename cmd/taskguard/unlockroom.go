package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"taskguard/lease"
	"taskguard/lease/documentlock"
	"taskguard/lease/iso8601"
)

// unlockedRoom is what unlock --room prints with --json.
type unlockedRoom struct {
	Room     string    `json:"room"`
	Unlocked bool      `json:"unlocked"` // false: nobody held it
	Was      *heldRoom `json:"lock_was"` // as read just before
}

// heldRoom is a lock for everybody's eyes.
type heldRoom struct {
	Holder    string `json:"holder"`
	Token     int64  `json:"token"`
	LockedAt  string `json:"locked_at"`
	ExpiresAt string `json:"expires_at"`
}

// unlockRoom is an operator's forced release of a document's room. Its holder finds
// its lock gone, and who listens is told.
func (c *call) unlockRoom(ctx context.Context, room string) (err error) {
	p, err := c.place()
	if err != nil {
		return err
	}
	if err := reach(ctx, firestoreEmulator, p.emulator, adviceRestart); err != nil {
		return err
	}
	rooms, err := c.rooms(ctx, p)
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
		return usageError("--room: " + strings.TrimPrefix(err.Error(), lease.ErrInvalidKey.Error()+": "))
	}
	if err != nil {
		return err
	}
	c.logRoom(ctx, p, done)
	return c.tellRoom(done)
}

// breakRoom says what the lock was that it broke.
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

// logRoom leaves behind who did it. The room's id is a user's input, so it is a
// hash, as in the log of the document lock itself.
func (c *call) logRoom(ctx context.Context, p place, done unlockedRoom) {
	attrs := []slog.Attr{
		slog.String("command", c.name), slog.String("room_hash", documentlock.Hash(done.Room)),
		slog.String("project", p.project), slog.String("by", operator()), slog.Bool("lock_held", done.Was != nil),
	}
	if done.Was != nil {
		attrs = append(attrs, slog.String("lock_holder", done.Was.Holder), slog.Int64("lock_token", done.Was.Token))
	}
	level, message := slog.LevelWarn, "changed by an operator"
	if !done.Unlocked {
		level, message = slog.LevelInfo, "nobody held it: nothing is changed"
	}
	c.log().LogAttrs(ctx, level, message, attrs...) //nolint:sloglint // one of two
}

func (c *call) tellRoom(done unlockedRoom) error {
	if c.json {
		return json.NewEncoder(c.out).Encode(done)
	}
	text := "is free: nobody held it"
	if done.Unlocked {
		text = "is unlocked; whoever listens is told"
	}
	_, err := fmt.Fprintf(c.out, "room %s %s\n", visible(done.Room), text)
	return err
}
