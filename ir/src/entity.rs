//! Typed ids and the append-only storage they index.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Index, IndexMut},
};

/// An index that knows which table it belongs to.
pub trait EntityId: Copy + Eq + std::hash::Hash + Ord {
    /// The id of entry `index`.
    fn from_index(index: usize) -> Self;
    /// Position in the table.
    fn index(self) -> usize;
}

macro_rules! entity_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl EntityId for $name {
            fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("more than u32::MAX entities"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

entity_id!(
    /// An SSA value.
    ValueId, "%"
);
entity_id!(
    /// An operation.
    NodeId, "n"
);

/// Append-only storage. Ids are never reused, so a stale id is a bug, not a surprise.
#[derive(Clone, Debug)]
pub struct Arena<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
}

impl<K: EntityId, V> Arena<K, V> {
    /// Adds an entry.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::from_index(self.items.len() - 1)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Every entry with its id, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(i, v)| (K::from_index(i), v))
    }
}

impl<K: EntityId, V> Index<K> for Arena<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: EntityId, V> IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}
