package cloudtasks

import (
	"math"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// A queue's documented limits and defaults.
const (
	maxRate, defaultRate             = 500, 500
	maxConcurrent, defaultConcurrent = 5000, 1000
	maxBurst                         = 100 // what the service shows for 500/s
	defaultAttempts                  = 100
	defaultMinBackoff                = 100 * time.Millisecond
	defaultMaxBackoff                = time.Hour
	defaultDoublings                 = 16
	// retention is the age at which a task is deleted whatever its state.
	retention = 31 * 24 * time.Hour
)

// defaultQueue is a new queue as the service makes it.
func defaultQueue(name string) *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{
		Name:  name,
		State: cloudtaskspb.Queue_RUNNING,
		RateLimits: &cloudtaskspb.RateLimits{
			MaxDispatchesPerSecond:  defaultRate,
			MaxConcurrentDispatches: defaultConcurrent,
			MaxBurstSize:            maxBurst,
		},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts:  defaultAttempts,
			MinBackoff:   durationpb.New(defaultMinBackoff),
			MaxBackoff:   durationpb.New(defaultMaxBackoff),
			MaxDoublings: defaultDoublings,
		},
	}
}

// normalizeQueue fills q's unset fields with the defaults and refuses values out
// of range. q is changed in place. mask is the update's, nil for a creation.
func normalizeQueue(q *cloudtaskspb.Queue, mask *fieldmaskpb.FieldMask) error {
	if q.HttpTarget != nil {
		return status.Error(codes.Unimplemented, "queue.http_target: not emulated")
	}
	if q.AppEngineRoutingOverride != nil {
		return status.Error(codes.Unimplemented, "queue.app_engine_routing_override: not emulated")
	}
	if q.RateLimits == nil {
		q.RateLimits = &cloudtaskspb.RateLimits{}
	}
	if err := normalizeRates(q.RateLimits); err != nil {
		return err
	}
	doublings := q.GetRetryConfig().GetMaxDoublings()
	chosen := len(mask.GetPaths()) > 0 && !slices.Contains(mask.GetPaths(), "retry_config")
	if q.RetryConfig == nil {
		q.RetryConfig = &cloudtaskspb.RetryConfig{}
	}
	if err := normalizeRetry("queue.retry_config", q.RetryConfig); err != nil {
		return err
	}
	if chosen {
		// No doublings at all is a choice, which proto3 cannot tell from an unset
		// field; here it was made by this mask or by an earlier one.
		q.RetryConfig.MaxDoublings = doublings
	}
	return nil
}

func normalizeRates(r *cloudtaskspb.RateLimits) error {
	rate, concurrent := r.MaxDispatchesPerSecond, r.MaxConcurrentDispatches
	if math.IsNaN(rate) || rate < 0 || rate > maxRate {
		return status.Errorf(codes.InvalidArgument, "queue.rate_limits.max_dispatches_per_second: want 0 to %d", maxRate)
	}
	if concurrent < 0 || concurrent > maxConcurrent {
		return status.Errorf(codes.InvalidArgument, "queue.rate_limits.max_concurrent_dispatches: want 0 to %d", maxConcurrent)
	}
	if rate == 0 {
		r.MaxDispatchesPerSecond = defaultRate
	}
	if concurrent == 0 {
		r.MaxConcurrentDispatches = defaultConcurrent
	}
	r.MaxBurstSize = int32(min(math.Ceil(r.MaxDispatchesPerSecond), maxBurst))
	return nil
}

// normalizeRetry fills unset fields with the defaults, in place; field is the
// path of c for messages. Zero backoffs count as unset: they would retry without
// end at one instant.
func normalizeRetry(field string, c *cloudtaskspb.RetryConfig) error {
	for name, d := range map[string]*durationpb.Duration{
		"min_backoff": c.MinBackoff, "max_backoff": c.MaxBackoff, "max_retry_duration": c.MaxRetryDuration,
	} {
		if d != nil && (d.CheckValid() != nil || d.Seconds < 0 || d.Nanos < 0) {
			return status.Errorf(codes.InvalidArgument, "%s.%s: want a duration of 0 or more", field, name)
		}
	}
	if c.MaxAttempts < -1 {
		return status.Errorf(codes.InvalidArgument, "%s.max_attempts: want -1 or more", field)
	}
	if c.MaxDoublings < 0 {
		return status.Errorf(codes.InvalidArgument, "%s.max_doublings: want 0 or more", field)
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = defaultAttempts
	}
	if c.MaxDoublings == 0 {
		c.MaxDoublings = defaultDoublings
	}
	if c.MaxBackoff.AsDuration() == 0 {
		c.MaxBackoff = durationpb.New(max(defaultMaxBackoff, c.MinBackoff.AsDuration()))
	}
	if c.MinBackoff.AsDuration() == 0 {
		c.MinBackoff = durationpb.New(min(defaultMinBackoff, c.MaxBackoff.AsDuration()))
	}
	if c.MinBackoff.AsDuration() > c.MaxBackoff.AsDuration() {
		return status.Errorf(codes.InvalidArgument, "%s: min_backoff is greater than max_backoff", field)
	}
	return nil
}

// updatedQueue returns old with the fields that mask names taken from in, all of
// them if mask is empty. Output-only fields stay old's.
func updatedQueue(old, in *cloudtaskspb.Queue, mask *fieldmaskpb.FieldMask) (*cloudtaskspb.Queue, error) {
	in = proto.CloneOf(in)
	next := in
	if len(mask.GetPaths()) > 0 {
		if !mask.IsValid(old) {
			return nil, status.Error(codes.InvalidArgument, "update_mask: no such field of a queue")
		}
		next = proto.CloneOf(old)
		for _, path := range mask.GetPaths() {
			copyField(next.ProtoReflect(), in.ProtoReflect(), path)
		}
	}
	next.Name, next.State, next.PurgeTime = old.Name, old.State, old.PurgeTime
	return next, nil
}

// copyField makes dst's field at path, which is valid for both, equal to src's.
func copyField(dst, src protoreflect.Message, path string) {
	name, rest, nested := strings.Cut(path, ".")
	field := dst.Descriptor().Fields().ByName(protoreflect.Name(name))
	switch {
	case nested:
		copyField(dst.Mutable(field).Message(), src.Get(field).Message(), rest)
	case src.Has(field):
		dst.Set(field, src.Get(field))
	default:
		dst.Clear(field)
	}
}
