package alertstest

import (
	"io"
	"log"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // net/http's complaints
	goleak.VerifyTestMain(m)
}
