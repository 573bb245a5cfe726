package fake_test

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	"github.com/atoll-run/atoll/provider/fake"
	"github.com/atoll-run/atoll/sandbox"
)

func harness(opts fake.Options) drivertest.Harness {
	opts.World = &fake.World{}
	return drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return fake.New(opts), nil },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
	}
}

func TestConformance(t *testing.T) { drivertest.Run(t, harness(fake.Options{})) }

func TestConformanceBare(t *testing.T) { drivertest.Run(t, harness(fake.Options{Bare: true})) }
