//go:build unix

package lease

// OnRename runs hook in each Swap between the writing of its temporary file and
// its renaming, which an error of hook prevents.
func (f *File[D]) OnRename(hook func() error) {
	rename := f.rename
	f.rename = func(from, to string) error {
		if err := hook(); err != nil {
			return err
		}
		return rename(from, to)
	}
}

// FileName is the name of a key's file.
var FileName = fileName
