package inboxtest

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// alarm waits for points in time with the kernel's precision.
//
// time.Sleep will not do: an idle Go program sleeps in epoll_wait, whose timeout is a whole
// number of milliseconds, so half a millisecond becomes one or more. A timerfd wakes the same
// epoll_wait to the microsecond, the way an arriving packet does, and holds no thread.
type alarm struct {
	mu     sync.Mutex
	file   *os.File
	closed bool
}

// The values of timerfd_create(2), which package syscall does not have.
const (
	clockMonotonic = 1
	timerfdFlags   = syscall.O_NONBLOCK | syscall.O_CLOEXEC
)

// waitUntil returns at the given time, or false as soon as the alarm is closed.
func (a *alarm) waitUntil(t time.Time) bool {
	if t.IsZero() {
		return true
	}
	for d := time.Until(t); d > 0; d = time.Until(t) {
		file, err := a.open()
		if err != nil {
			return false
		}
		if err := set(file, d); err != nil {
			return false
		}
		var expirations [8]byte
		if _, err := file.Read(expirations[:]); err != nil {
			return false
		}
	}
	return true
}

// open returns the timer, which it makes at the first call.
func (a *alarm) open() (*os.File, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, os.ErrClosed
	}
	if a.file == nil {
		fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, timerfdFlags, 0)
		if errno != 0 {
			return nil, os.NewSyscallError("timerfd_create", errno)
		}
		a.file = os.NewFile(fd, "timerfd")
	}
	return a.file, nil
}

func (a *alarm) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file != nil && !a.closed {
		_ = a.file.Close()
	}
	a.closed = true
}

func set(file *os.File, d time.Duration) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	// struct itimerspec: the interval, then the first expiration.
	spec := [2]syscall.Timespec{1: syscall.NsecToTimespec(d.Nanoseconds())}
	var errno syscall.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
