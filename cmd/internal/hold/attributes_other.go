//go:build unix && !linux

package hold

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
