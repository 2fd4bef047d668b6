package repo

import (
	"cmp"
	"encoding/json"
	"strings"

	"cloud.google.com/go/firestore"

	"taskguard/lease/analysislock"
)

// decodeProgress decodes the field progress. It returns nil if that is not a map.
func decodeProgress(v any) *analysislock.Progress {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	var p analysislock.Progress
	p.Message = cut(m["message"])
	p.At, _ = parseTime(m["at"])

	f, ok := m["fraction"].(float64)
	if whole, integer := m["fraction"].(int64); integer {
		f, ok = float64(whole), true
	}
	if ok && f >= 0 && f <= 1 {
		p.Fraction = &f
	}
	return &p
}

func progressValue(p *analysislock.Progress) any {
	if p == nil {
		return firestore.Delete
	}
	m := map[string]any{"at": timeValue(p.At), "message": orDelete(p.Message)}
	if p.Fraction != nil {
		m["fraction"] = *p.Fraction
	}
	return present(m)
}

// decodeHistory reads the entries that are maps.
func decodeHistory(v any) (all []analysislock.Attempt) {
	entries, _ := v.([]any)
	for _, entry := range entries {
		m, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		a := analysislock.Attempt{
			Owner: cut(m["owner"]), Outcome: cut(m["outcome"]), Code: cut(m["code"]), Message: cut(m["message"]),
		}
		number, _ := parseInt(m["attempt"])
		uncounted, _ := parseInt(m["uncounted"])
		delays, _ := parseInt(m["delays"])
		a.Number, a.Uncounted, a.Delays = int(number), int(uncounted), int(delays)
		a.Alone, _ = m["alone"].(bool)
		a.Token, _ = parseInt(m["token"])
		a.StartedAt, _ = parseTime(m["startedAt"])
		a.EndedAt, _ = parseTime(m["endedAt"])
		a.Changes = decodeChanges(m["changes"])
		all = append(all, a)
	}
	return all
}

func decodeChanges(v any) (all []analysislock.OperatorChange) {
	entries, _ := v.([]any)
	for _, entry := range entries {
		if m, ok := entry.(map[string]any); ok {
			c := analysislock.OperatorChange{Change: cut(m["change"]), By: cut(m["by"])}
			c.At, _ = parseTime(m["at"])
			all = append(all, c)
		}
	}
	return all
}

func changesValue(all []analysislock.OperatorChange) any {
	if len(all) == 0 {
		return firestore.Delete
	}
	entries := make([]any, len(all))
	for i, c := range all {
		entries[i] = present(map[string]any{"change": c.Change, "by": c.By, "at": timeValue(c.At)})
	}
	return entries
}

func historyValue(all []analysislock.Attempt) any {
	if len(all) == 0 {
		return firestore.Delete
	}
	entries := make([]any, len(all))
	for i := range all {
		a := &all[i]
		entries[i] = present(map[string]any{
			"attempt": int64(a.Number), "token": a.Token, "owner": a.Owner,
			"startedAt": timeValue(a.StartedAt), "endedAt": timeValue(a.EndedAt),
			"outcome": orDelete(a.Outcome), "uncounted": orDelete(int64(a.Uncounted)),
			"alone": orDelete(a.Alone), "delays": orDelete(int64(a.Delays)),
			"code": orDelete(a.Code), "message": orDelete(a.Message),
			"changes": changesValue(a.Changes),
		})
	}
	return entries
}

func checkpointValue(c *analysislock.Checkpoint) any {
	if c == nil || c.Value == nil {
		return firestore.Delete
	}
	return c.Value
}

// decodeActs decodes the field effects. An act that it cannot read may have been done.
func decodeActs(v any) analysislock.Acts {
	m, ok := v.(map[string]any)
	if !ok && v != nil {
		m = map[string]any{analysislock.Unreadable: nil}
	}
	acts := make(analysislock.Acts, len(m))
	for name, record := range m {
		e := analysislock.Act{State: analysislock.ActStarted}
		fields, _ := record.(map[string]any)
		if fields["state"] == analysislock.ActDone {
			e.State = analysislock.ActDone
			if result, exists := fields["result"]; exists {
				e.Result = decodeResult(result)
			} else {
				e.ResultError = cmp.Or(cut(fields["resultError"]), "the record has no result")
			}
		}
		e.Token, _ = parseInt(fields["token"])
		e.At, _ = parseTime(fields["at"])
		acts[name] = e
	}
	return acts
}

// decodeResult returns the result of an act. Earlier versions stored it as a value, and not as the text
// of its JSON.
func decodeResult(v any) json.RawMessage {
	if text, ok := v.(string); ok && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	text, _ := Plain(v) // a decoded value is JSON
	return text
}

// reserve fills the room that the result of an open act may need, so that no other field takes it.
var reserve = strings.Repeat(" ", analysislock.ActRoom)

func actsValue(acts analysislock.Acts) any {
	if len(acts) == 0 {
		return firestore.Delete
	}
	m := make(map[string]any, len(acts))
	for name, e := range acts {
		record := map[string]any{"state": e.State, "token": e.Token, "at": timeValue(e.At)}
		switch {
		case e.State != analysislock.ActDone:
			record["reserve"] = reserve
		case e.Result != nil:
			record["result"] = strings.ToValidUTF8(string(e.Result), "\uFFFD")
		default:
			record["resultError"] = e.ResultError
		}
		m[name] = present(record)
	}
	return m
}
