package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	"taskguard/lease"
	"taskguard/lease/iso8601"
)

// State is the content of the state file: {"storage": {session: {"data": string,
// "updated_at": ISO 8601}}}, and other programs' fields. It is immutable (SEEDS O3).
type State struct {
	storage map[string]entry
	rest    map[string]json.RawMessage // all fields of the file; storage is superseded
	corrupt int                        // the size of a corrupt file
}

// entry is one session's value.
type entry struct {
	fields  map[string]json.RawMessage // all fields of the file, known or not
	data    string                     // empty: none, or it could not be read
	updated time.Time
}

// usedAt returns e as last used at now.
func (e entry) usedAt(now time.Time) entry {
	e.updated = now.UTC().Truncate(time.Millisecond)
	return e.set("updated_at", iso8601.Format(e.updated))
}

func (e entry) set(field, text string) entry {
	fields := map[string]json.RawMessage{}
	maps.Copy(fields, e.fields)
	fields[field], _ = json.Marshal(text)
	e.fields = fields
	return e
}

// format is the state file's lease.Format; the key is the path.
type format struct{}

func (format) Name(path string) (string, error) {
	name := filepath.Base(path)
	if name == "." || name == ".." || name == string(filepath.Separator) {
		return "", fmt.Errorf("%w: %q is not a file name", lease.ErrInvalidKey, path)
	}
	return name, nil
}

func (format) Encode(_ string, s State, _ time.Time) ([]byte, error) {
	entries := make(map[string]map[string]json.RawMessage, len(s.storage))
	for session, e := range s.storage {
		entries[session] = e.fields
	}
	file := map[string]any{}
	for name, raw := range s.rest {
		file[name] = raw
	}
	file["storage"] = entries
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(file)
	return b.Bytes(), err
}

// Decode returns no time of writing: other programs set the times of the file, so
// only the clock counts. A corrupt file is an empty one, without corrupt entries.
func (format) Decode(_ string, data []byte, modified time.Time) (s State, _ time.Time, _ error) {
	var entries map[string]json.RawMessage
	_ = json.Unmarshal(data, &s.rest) // nil unless data is one object
	sound := s.rest != nil
	if raw, ok := s.rest["storage"]; ok {
		sound = json.Unmarshal(raw, &entries) == nil
	}
	s.storage = make(map[string]entry, len(entries))
	for session, raw := range entries {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil || fields == nil || session == "" {
			sound = false
			continue
		}
		s.storage[session] = entryOf(fields, modified)
	}
	if !sound {
		s.corrupt = len(data)
	}
	return s, time.Time{}, nil
}

func entryOf(fields map[string]json.RawMessage, modified time.Time) entry {
	e := entry{fields: fields}
	var text string
	_ = json.Unmarshal(fields["data"], &e.data) // other JSON is no operator
	_ = json.Unmarshal(fields["updated_at"], &text)
	updated, ok := iso8601.Parse(text)
	if !ok {
		return e.usedAt(modified)
	}
	e.updated = updated
	return e
}

// view is the state as one session sees it in one edit.
type view struct {
	Status
	entries map[string]entry // what the change may modify
	now     time.Time
}

// edit removes expired entries, refreshes the session's own one, calls change with the
// others, and writes the state back, also after an error of change, which it returns.
func (p *Pool) edit(ctx context.Context, change func(*view) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()

	corrupt := 0
	var refused error
	decide := func(c lease.Cell[State]) (State, error) {
		next := State{storage: p.live(c.Doc.storage, c.At), rest: c.Doc.rest}
		corrupt, refused = c.Doc.corrupt, change(p.view(next.storage, c.At))
		return next, nil
	}
	landed := func(lease.Cell[State]) bool { return false } // making a change twice does no harm
	_, err := lease.Edit(ctx, p.store, p.path, lease.Write[State]{Decide: decide, Landed: landed})
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}

	if corrupt > 0 && p.o.Corrupt != nil {
		p.o.Corrupt(corrupt)
	}
	return refused
}

// view refreshes the session's entry and returns what the session sees.
func (p *Pool) view(entries map[string]entry, now time.Time) *view {
	v := &view{entries: entries, now: now}
	busy := map[string]bool{}
	for session, e := range entries {
		if session != p.session {
			busy[e.data] = true
			continue
		}
		e = e.usedAt(now)
		entries[session] = e
		v.Operator, v.ExpiresAt = Operator{ID: e.data, Name: e.data}, e.updated.Add(p.o.Timeout)
	}

	for _, o := range p.operators {
		state := Available
		if o.ID == v.Operator.ID {
			state, v.Operator = Own, o
		}
		if busy[o.ID] {
			state = Busy
		}
		v.Operators = append(v.Operators, Listed{o, state})
	}
	return v
}

// live returns a copy of entries without the expired ones, and without the entries
// of dead processes.
func (p *Pool) live(entries map[string]entry, now time.Time) map[string]entry {
	live := make(map[string]entry, len(entries))
	for session, e := range entries {
		if e.updated.After(now) {
			e = e.usedAt(now)
		}
		l := lease.Lease{Owner: session, HeartbeatAt: e.updated, ExpiresAt: e.updated.Add(p.o.Timeout)}
		if lease.Held(l, now) && (session == p.session || p.alive(session)) {
			live[session] = e
		}
	}
	return live
}

// alive reports false if session is the ID of a dead process.
func (p *Pool) alive(session string) bool {
	pid, err := strconv.Atoi(session)
	return err != nil || pid <= 0 || p.o.Alive == nil || p.o.Alive(pid)
}

// SessionID returns the ID that all processes of a terminal session share: its
// ITERM_SESSION_ID, else its TERM_SESSION_ID, else the process ID of their parent,
// the shell. An empty variable counts as unset (SEEDS O4).
//
// All panes of tmux, and windows of screen and zellij, inherit these two variables from the terminal
// that started them. So the names of the server and of the pane follow the terminal's.
func SessionID(getenv func(name string) string, parent func() int) string {
	id := cmp.Or(getenv("ITERM_SESSION_ID"), getenv("TERM_SESSION_ID"))
	if id == "" {
		return strconv.Itoa(parent())
	}
	for _, name := range []string{"STY", "WINDOW", "ZELLIJ_SESSION_NAME", "ZELLIJ_PANE_ID", "TMUX", "TMUX_PANE"} {
		if value := getenv(name); value != "" {
			id += "/" + value
		}
	}
	return id
}
