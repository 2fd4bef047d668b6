package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"taskguard/lease/operatorpool"
)

// operatorsFile is used where neither --operators nor OPERATORS_FILE names another.
const operatorsFile = "operators.json"

const operatorsExample = `{"operators": [{"id": "tsukuyomi", "name": "つくよみちゃん"}], "operatorTimeout": 14400000}`

// operators is what that file holds.
type operators struct {
	Operators []operatorpool.Operator `json:"operators"`
	Timeout   *int64                  `json:"operatorTimeout"` // milliseconds
}

// readOperators reads who there is; its error shows what such a file looks like.
func readOperators(path string) ([]operatorpool.Operator, time.Duration, error) {
	var o operators
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return nil, 0, usageError(fmt.Sprintf("オペレータ定義ファイル %s: %v\n例: %s", path, err, operatorsExample))
	}
	timeout := operatorpool.DefaultTimeout
	if o.Timeout != nil {
		timeout = time.Duration(*o.Timeout) * time.Millisecond
	}
	return o.Operators, timeout, nil
}

// check refuses what no pool can be made of, and names operators without a name
// by their id.
func (o *operators) check() error {
	seen := map[string]bool{}
	for i, operator := range o.Operators {
		switch {
		case operator.ID == "":
			return fmt.Errorf("operator %d has no id", i+1)
		case seen[operator.ID]:
			return fmt.Errorf("the id %q is there twice", operator.ID)
		case operator.Name == "":
			o.Operators[i].Name = operator.ID
		}
		seen[operator.ID] = true
	}
	switch {
	case len(o.Operators) == 0:
		return errors.New("there are no operators in it")
	case o.Timeout != nil && (*o.Timeout <= 0 || *o.Timeout > math.MaxInt64/int64(time.Millisecond)):
		return fmt.Errorf("operatorTimeout is %d: want milliseconds, 1 or more", *o.Timeout)
	}
	return nil
}
