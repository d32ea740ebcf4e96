package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/journal/storetest"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	store, err := sqlite.Open(ctx, sqlite.Config{
		Path:    filepath.Join(dir, "journal.db"),
		Schemas: []journal.Schema{storetest.Schema()}, // a table of balances
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	deposit := func(tx journal.Tx) error {
		if err := tx.Append("account/ada", 0, "account.opened", []byte(`{"amount":5}`)); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT INTO storetest_balance (name, amount) VALUES ($1, $2)`, "ada", 5)
		return err
	}
	fmt.Println(store.Update(ctx, deposit))
	fmt.Println(store.Update(ctx, deposit)) // the stream exists now

	enough := errors.New("enough")
	err = store.Tail(ctx, 0, func(e journal.Event) error {
		fmt.Println(e.Position, e.Stream, e.Version, e.Kind, string(e.Body))
		return enough
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// stream "account/ada" is at version 1, not 0
	// 1 account/ada 1 account.opened {"amount":5}
	// enough
}
