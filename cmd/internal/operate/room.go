package operate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/locks/document"
)

// unlockRoom releases a room's lock by force. Its holder finds the lock gone, and
// subscribers are notified.
func unlockRoom(ctx context.Context, c *cli.Call, room string) (err error) {
	rooms, database, err := c.Rooms(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rooms.Close()) }()
	if err := cli.Reach(ctx, cli.FirestoreEmulator, database.Emulator); err != nil {
		return err
	}

	locks, err := document.New(rooms, 0)
	if err != nil {
		return err
	}
	return releaseRoom(ctx, c, locks, room, c.Log().With("project", database.Project))
}

// releaseRoom unlocks the room, and prints and logs what it was.
func releaseRoom(ctx context.Context, c *cli.Call, locks *document.Locks, room string, log *slog.Logger) error {
	was, err := locks.Get(ctx, room, "")
	if errors.Is(err, lease.ErrInvalidKey) {
		return cli.UsageError("--room: " + text.Error(err, lease.ErrInvalidKey))
	}
	if err != nil {
		return err
	}

	// The room's id is a user's input: it is logged as a hash, as the document lock does.
	log = log.With("command", c.Name, "room_hash", document.Hash(room), "by", operator(),
		"lock_held", was.Locked, "lock_holder", was.Lock.Holder, "lock_token", was.Lock.Token)
	unlocked, err := locks.Unlock(ctx, room)
	if errors.Is(err, lease.ErrMayBeWritten) {
		log.WarnContext(ctx, mayHaveChanged, "error", err)
		return fmt.Errorf("not confirmed: the room may be unlocked: %w", err)
	}
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "changed by an operator", "unlocked", unlocked)
	if c.JSON {
		done := map[string]any{"room": room, "unlocked": unlocked, "lock_was": nil}
		if was.Locked { // read just before the change
			done["lock_was"] = map[string]any{
				"holder": was.Lock.Holder, "token": was.Lock.Token,
				"locked_at": iso8601.Format(was.Lock.LockedAt), "expires_at": iso8601.Format(was.Lock.ExpiresAt),
			}
		}
		return c.PrintJSON(done)
	}

	state := "is free: it was not locked"
	if unlocked {
		state = "is unlocked; subscribers are notified"
	}
	cli.Print(c.Out, "room %s %s\n", printable.Line(room), state)
	return nil
}
