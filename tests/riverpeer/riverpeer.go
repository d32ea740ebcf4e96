// Package riverpeer is River, a job queue of others, on its SQLite driver, for benchmarks
// of the plane to print ratios against. It is set up as well as it can be for that: the
// same durability as our store (WAL, synchronous FULL), one connection as its driver asks
// for, the shortest waits between fetches that it allows, and as many workers as callers.
package riverpeer

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"modernc.org/sqlite"
)

// args are what a job carries.
type args struct {
	N       int64  `json:"n"`
	Payload string `json:"payload"`
}

func (args) Kind() string { return "cycle" }

// Queue is a River queue with its workers at work. Close it.
type Queue struct {
	db     *sql.DB
	client *river.Client[*sql.Tx]
	done   <-chan *river.Event
	cancel func()
	work   sync.WaitGroup

	mu      sync.Mutex
	next    int64
	begun   map[int64]time.Time
	waiting map[int64]chan struct{} // by the job's id
	early   map[int64]bool          // that completed before their inserter could wait
}

// connector opens connections to the file that it names.
type connector string

func (c connector) Connect(context.Context) (driver.Conn, error) {
	return (&sqlite.Driver{}).Open(string(c))
}
func (connector) Driver() driver.Driver { return &sqlite.Driver{} }

type worker struct {
	river.WorkerDefaults[args]
	q *Queue
}

func (w *worker) Work(_ context.Context, job *river.Job[args]) error {
	w.q.mu.Lock()
	defer w.q.mu.Unlock()
	w.q.begun[job.Args.N] = time.Now()
	return nil
}

// Open opens a queue in the folder with a number of workers.
func Open(ctx context.Context, folder string, workers int) (*Queue, error) {
	db := sql.OpenDB(connector("file:" + filepath.Join(folder, "river.db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(10000)&_txlock=immediate"))
	db.SetMaxOpenConns(1)
	peer := riversqlite.New(db)
	log := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(peer, &rivermigrate.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("migrate River's tables: %w", err)
	}
	q := &Queue{db: db, begun: map[int64]time.Time{}, waiting: map[int64]chan struct{}{}, early: map[int64]bool{}}
	all := river.NewWorkers()
	river.AddWorker(all, &worker{q: q})
	q.client, err = river.NewClient(peer, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}, Workers: all, Logger: log,
		FetchCooldown: time.Millisecond, FetchPollInterval: time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	q.done, q.cancel = q.client.SubscribeConfig(&river.SubscribeConfig{Kinds: []river.EventKind{river.EventKindJobCompleted}, ChanSize: 10_000})
	q.work.Go(func() {
		for e := range q.done {
			q.mu.Lock()
			if c := q.waiting[e.Job.ID]; c != nil {
				close(c)
				delete(q.waiting, e.Job.ID)
			} else {
				q.early[e.Job.ID] = true
			}
			q.mu.Unlock()
		}
	})
	return q, q.client.Start(ctx)
}

// Cycle inserts a job and waits until it has been worked and its completion is on
// record. It returns how long the job waited until it began.
func (q *Queue) Cycle(ctx context.Context, payload string) (start time.Duration, err error) {
	q.mu.Lock()
	q.next++
	n := q.next
	q.mu.Unlock()
	began := time.Now()
	in, err := q.client.Insert(ctx, args{n, payload}, nil)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	var done chan struct{}
	if q.early[in.Job.ID] {
		delete(q.early, in.Job.ID)
	} else {
		done = make(chan struct{})
		q.waiting[in.Job.ID] = done
	}
	q.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	start = q.begun[n].Sub(began)
	delete(q.begun, n)
	return start, nil
}

// Close stops the workers and closes the database.
func (q *Queue) Close(ctx context.Context) error {
	err := q.client.Stop(ctx)
	q.cancel()
	q.work.Wait()
	if e := q.db.Close(); err == nil {
		err = e
	}
	return err
}
