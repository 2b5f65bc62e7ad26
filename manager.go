package events

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// drainOnStop is the manager's runnable that shuts a recorder down when the
// manager stops.
//
// A manager stops its runnables in groups: the reconcilers in the second, what
// has a cache in the third. Reconcilers record until they end, so the drain
// must come after them; GetCache puts it into the third group. It also starts
// there, before the reconcilers, and on managers that do not lead.
type drainOnStop struct{ r *EventRecorder }

// Start waits for the manager to stop. ctx ends when the turn of the group
// comes, so the drain cannot use it.
func (d drainOnStop) Start(ctx context.Context) error {
	<-ctx.Done()
	// A manager that has lost its lease waits for nobody: this may be the last line.
	if delivery := d.r.shared.delivery; delivery.queue.length() > 0 {
		d.r.log.Info("Manager has stopped, pending events are delivered", "pending", delivery.queue.length())
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.r.shared.drainTimeout)
	defer cancel()
	// What is lost is logged and counted. A manager that stops has no other
	// use for an error.
	_ = d.r.Shutdown(drain)
	return nil
}

// GetCache marks the runnable as one of the group that stops after the
// reconcilers.
func (d drainOnStop) GetCache() cache.Cache { return syncedCache{} }

// syncedCache is all of a cache that the manager asks for: that it is synced.
type syncedCache struct{ cache.Cache }

func (syncedCache) WaitForCacheSync(context.Context) bool { return true }
