package resource

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// SizeFlag is a number of bytes, written as Docker or Kubernetes do: 512m, 2g,
// 1.5GiB, 512Mi. Units are binary. It satisfies pflag.Value.
type SizeFlag int64

func (s *SizeFlag) Set(text string) error {
	docker := text
	if strings.HasSuffix(text, "i") {
		docker += "B"
	}
	n, err := units.RAMInBytes(docker)
	if err != nil || n <= 0 || n == math.MaxInt64 {
		return fmt.Errorf("%q is not a size such as 512m or 2g", text)
	}
	*s = SizeFlag(n)
	return nil
}

func (s *SizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	return units.BytesSize(float64(*s))
}

func (s *SizeFlag) Type() string { return "size" }

// DurationFlag is a duration; a bare number is seconds. It satisfies
// pflag.Value.
type DurationFlag time.Duration

func (d *DurationFlag) Set(text string) error {
	v, err := time.ParseDuration(text)
	if seconds, plain := strconv.ParseUint(text, 10, 31); plain == nil {
		v, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not a duration such as 30s or 5m", text)
	}
	*d = DurationFlag(v)
	return nil
}

func (d *DurationFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *DurationFlag) Type() string { return "duration" }

// IdleFlag is a duration, or never, which is -1. It satisfies pflag.Value.
type IdleFlag DurationFlag

func (i *IdleFlag) Set(text string) error {
	if text == "never" {
		*i = -1
		return nil
	}
	if err := (*DurationFlag)(i).Set(text); err != nil {
		return fmt.Errorf("%w, nor never", err)
	}
	return nil
}

func (i *IdleFlag) String() string {
	if *i < 0 {
		return "never"
	}
	return (*DurationFlag)(i).String()
}

func (i *IdleFlag) Type() string { return "duration" }

// DaysFlag is a duration that may also be given in days, such as 90d. It
// satisfies pflag.Value.
type DaysFlag time.Duration

func (d *DaysFlag) Set(text string) error {
	count, inDays := strings.CutSuffix(text, "d")
	if days, err := strconv.ParseUint(count, 10, 16); inDays && err == nil && days > 0 {
		*d = DaysFlag(time.Duration(days) * 24 * time.Hour)
		return nil
	}
	if (*DurationFlag)(d).Set(text) != nil {
		return fmt.Errorf("%q is not a duration such as 12h or 90d", text)
	}
	return nil
}

// String returns whole days as days.
func (d *DaysFlag) String() string {
	const day = DaysFlag(24 * time.Hour)
	if *d > 0 && *d%day == 0 {
		return strconv.FormatInt(int64(*d/day), 10) + "d"
	}
	return (*DurationFlag)(d).String()
}

func (d *DaysFlag) Type() string { return "duration" }

// IsolationFlag is the weakest isolation that a sandbox may have. It satisfies
// pflag.Value.
type IsolationFlag sandbox.Isolation

func (i *IsolationFlag) Set(text string) error {
	if !slices.Contains(sandbox.Isolations(), sandbox.Isolation(text)) {
		return fmt.Errorf("%q is not one of none, kernel and hardware", text)
	}
	*i = IsolationFlag(text)
	return nil
}

func (i *IsolationFlag) String() string { return string(*i) }

func (i *IsolationFlag) Type() string { return "kind" }

// Register registers --isolation.
func (i *IsolationFlag) Register(cmd *cobra.Command) {
	cmd.Flags().Var(i, "isolation", "at least this isolation: none, kernel (a kernel of its own) or hardware (a virtual machine)")
	CompleteFlag(cmd, "isolation", "none", "kernel", "hardware")
}
