package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"
)

// control is what tests do to the bridge and see of it, each a POST with a JSON object.
func (b *bridge) control() http.Handler {
	mux := http.NewServeMux()
	handle := func(name string, f func(ctx context.Context, body *json.Decoder) (any, error)) {
		mux.HandleFunc("POST /control/"+name, func(w http.ResponseWriter, r *http.Request) {
			got, err := f(r.Context(), json.NewDecoder(r.Body))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(got)
		})
	}
	handle("say", b.speak)
	handle("change", b.change)
	handle("tell", b.retell)
	handle("raw", b.raw)
	handle("remove", func(_ context.Context, d *json.Decoder) (any, error) {
		var in struct{ ID string }
		if err := d.Decode(&in); err != nil {
			return nil, err
		}
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		for _, m := range b.store.in("") {
			if m.ID == in.ID || m.Root == in.ID {
				m.Gone = true
				if err := b.store.write(m); err != nil {
					return nil, err
				}
			}
		}
		return true, nil
	})
	handle("sever", func(context.Context, *json.Decoder) (any, error) { b.sever(); return true, nil })
	handle("mend", func(ctx context.Context, _ *json.Decoder) (any, error) {
		if err := b.serve(b.address); err != nil {
			return nil, err
		}
		b.mu.Lock()
		b.gap = false
		b.mu.Unlock()
		status, _ := b.send(ctx, result{"gap": true})
		return status, nil
	})
	handle("fail", func(_ context.Context, d *json.Decoder) (any, error) {
		var f []fault
		if err := d.Decode(&f); err != nil {
			return nil, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.faults = f
		return true, nil
	})
	handle("mood", func(_ context.Context, d *json.Decoder) (any, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mood = mood{}
		return true, d.Decode(&b.mood)
	})
	handle("lose", func(context.Context, *json.Decoder) (any, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.epoch++
		return true, nil
	})
	handle("events", func(_ context.Context, d *json.Decoder) (any, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return true, d.Decode(&b.events)
	})
	handle("room", func(_ context.Context, d *json.Decoder) (any, error) {
		var room string
		if err := d.Decode(&room); err != nil {
			return nil, err
		}
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		return b.store.in(room), nil
	})
	handle("await", b.await)
	handle("met", func(context.Context, *json.Decoder) (any, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		met := maps.Clone(b.met)
		clear(b.met) // since the last time
		return met, nil
	})
	handle("seen", func(context.Context, *json.Decoder) (any, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return append([]seen{}, b.log...), nil
	})
	return mux
}

// await waits until a number of our own posts stand below a root.
func (b *bridge) await(ctx context.Context, d *json.Decoder) (any, error) {
	var in struct {
		Root  string
		Posts int
	}
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	for {
		b.store.mu.Lock()
		grown, n := b.store.grown, 0
		for _, m := range b.store.all {
			if m.Own && m.Root == in.Root && !m.Gone {
				n++
			}
		}
		b.store.mu.Unlock()
		if n >= in.Posts {
			return n, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// speak has somebody write a message, and tells the gateway of it.
func (b *bridge) speak(ctx context.Context, d *json.Decoder) (any, error) {
	var in struct {
		Room, Under, User, Name, Text, Kind string
		Bot, Own, Quiet                     bool
		At                                  time.Time
	}
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	m := message{Room: in.Room, User: in.User, Name: in.Name, Text: in.Text, Kind: in.Kind, Bot: in.Bot, At: in.At.UTC()}
	if in.Own {
		m.User = b.self
	}
	if in.At.IsZero() {
		m.At = time.Now().UTC()
	}
	b.store.mu.Lock()
	if in.Under != "" {
		under, ok := b.store.get(in.Under)
		if !ok {
			b.store.mu.Unlock()
			return nil, fmt.Errorf("there is no message %q", in.Under)
		}
		m.Root = under.Root
	}
	m, err := b.store.add(m)
	b.store.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var told []int
	if !in.Quiet {
		told = b.tell(ctx, "message", m)
	}
	return map[string]any{"id": m.ID, "told": told}, nil
}

// change changes a text, or only adds a preview, and tells the gateway of an edit.
func (b *bridge) change(ctx context.Context, d *json.Decoder) (any, error) {
	var in struct {
		ID, Text string
		Preview  bool
	}
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	b.store.mu.Lock()
	m, ok := b.store.get(in.ID)
	if ok && !in.Preview {
		m.Text = in.Text
		m.Edits++
		if err := b.store.write(m); err != nil {
			b.store.mu.Unlock()
			return nil, err
		}
	}
	b.store.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("there is no message %q", in.ID)
	}
	return b.tell(ctx, "edit", m), nil
}

// retell tells the gateway of messages again.
func (b *bridge) retell(ctx context.Context, d *json.Decoder) (any, error) {
	var in struct {
		AtOnce bool
		IDs    []string
	}
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	var all []message
	b.store.mu.Lock()
	for _, id := range in.IDs {
		if m, ok := b.store.get(id); ok {
			all = append(all, m)
		}
	}
	b.store.mu.Unlock()
	if !in.AtOnce {
		return b.tell(ctx, "message", all...), nil
	}
	statuses := make([]int, len(all))
	var sending sync.WaitGroup
	for i, m := range all {
		sending.Go(func() { statuses[i], _ = b.send(ctx, b.payload(m, "message")) })
	}
	sending.Wait()
	return statuses, nil
}

// raw sends a payload that is no message of the store.
func (b *bridge) raw(ctx context.Context, d *json.Decoder) (any, error) {
	var p result
	if err := d.Decode(&p); err != nil {
		return nil, err
	}
	status, answer := b.send(ctx, p)
	return map[string]any{"status": status, "answer": answer}, nil
}
