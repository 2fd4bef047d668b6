package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"taskguard/locks/operator"
)

// operatorsFile is used where neither --operators nor OPERATORS_FILE names another. If
// it does not exist, or a file has no key "operators", the operators are those of the seed.
const operatorsFile = "operators.json"

//go:embed operators.json
var builtIn []byte

const operatorsExample = `{"operators": [{"id": "tsukuyomi", "name": "つくよみちゃん"}], "operatorTimeout": 14400000}`

// operators is the content of that file.
type operators struct {
	Operators []operator.Operator `json:"operators"`
	Timeout   int64               `json:"operatorTimeout"` // milliseconds; zero: operator.DefaultTimeout
}

// readOperators returns the operators of the file at path, and their timeout; empty:
// operatorsFile, or the seed's.
func readOperators(path string) ([]operator.Operator, time.Duration, error) {
	data, err := os.ReadFile(cmp.Or(path, operatorsFile))
	if path == "" && errors.Is(err, fs.ErrNotExist) {
		data, err = builtIn, nil
	}
	if err != nil {
		return nil, 0, err
	}

	var o operators
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, 0, err
	}
	timeout := time.Duration(o.Timeout) * time.Millisecond
	if o.Operators == nil {
		_ = json.Unmarshal(builtIn, &o) // a test reads it
	}
	for i, operator := range o.Operators {
		o.Operators[i].Name = cmp.Or(operator.Name, operator.ID)
	}
	return o.Operators, timeout, operator.Check(o.Operators)
}
