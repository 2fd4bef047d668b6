package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"taskguard/locks/operator"
)

// operatorsFile is used where neither --operators nor OPERATORS_FILE names another. If
// it does not exist, or a file has no key "operators", the operators are those of the seed (O10).
const operatorsFile = "operators.json"

//go:embed operators.json
var builtIn []byte

const operatorsExample = `{"operators": [{"id": "tsukuyomi", "name": "つくよみちゃん"}], "operatorTimeout": 14400000}`

// operators is the content of that file.
type operators struct {
	Operators []operator.Operator `json:"operators"`
	Timeout   *int64              `json:"operatorTimeout"` // milliseconds
}

// readOperators returns the operators of the file at path, and their timeout; empty:
// operatorsFile, or the seed's.
func readOperators(path string) ([]operator.Operator, time.Duration, error) {
	var o operators
	data, err := os.ReadFile(cmp.Or(path, operatorsFile))
	if path == "" && errors.Is(err, fs.ErrNotExist) {
		data, err = builtIn, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	timeout := operator.DefaultTimeout
	if err == nil && o.Timeout != nil {
		timeout = time.Duration(*o.Timeout) * time.Millisecond
		if *o.Timeout <= 0 || *o.Timeout > math.MaxInt64/int64(time.Millisecond) {
			err = fmt.Errorf("operatorTimeout is %d: want milliseconds, 1 or more", *o.Timeout)
		}
	}
	if err == nil && o.Operators == nil {
		err = json.Unmarshal(builtIn, &o)
	}
	if err != nil {
		return nil, 0, err
	}
	for i, operator := range o.Operators {
		o.Operators[i].Name = cmp.Or(operator.Name, operator.ID)
	}
	return o.Operators, timeout, nil
}

// operatorsError is an error of that file, with an example of a correct one.
func (c *call) operatorsError(err error) error {
	text := c.text("オペレータ定義ファイル %s: %v\n例: %s", "file of operators %s: %v\nexample: %s")
	return usageError(fmt.Sprintf(text, cmp.Or(c.operators, operatorsFile), err, operatorsExample))
}
