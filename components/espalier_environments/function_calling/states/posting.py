"""TwitterAPI: one user's posts, comments, reposts, and followed users."""

from __future__ import annotations

from typing import Any, ClassVar

from espalier_environments.function_calling.states.api import Api, Fields, Reply

_NOT_LOGGED_IN = {"error": "authenticate first"}
_LEFT_OUT: list[str] = []
"""Default for a list argument that a call leaves out; never changed."""


class TwitterAPI(Api):
    """BFCL's simulated posting service."""

    _FIELDS: ClassVar[Fields] = {
        "tweets": (dict,), "comments": (dict,), "retweets": (dict,), "following_list": (list,),
        "tweet_counter": (int,),
    }  # fmt: skip

    def _begin(self, config: dict[str, Any]) -> None:
        self.username: Any = config.get("username", "john")
        self.password: Any = config.get("password", "john123")
        self.authenticated: Any = config.get("authenticated", False)
        tweets: dict[str, Any] = config.get("tweets", {})
        self.tweets = {int(number): tweet for number, tweet in tweets.items()}
        self.comments: dict[Any, Any] = config.get("comments", {})
        self.retweets: dict[str, list[Any]] = config.get("retweets", {})
        self.following_list: list[str] = config.get("following_list", ["alice", "bob"])
        self.tweet_counter: int = config.get("tweet_counter", 0)
        # as upstream, posts without mentions share one list: a mention added to one is added to all
        self._no_tags: list[str] = []
        self._no_mentions: list[str] = []

    def authenticate_twitter(self, username: str, password: str) -> Reply:
        """Log in with name and password."""
        is_right = username == self.username and password == self.password
        self.authenticated = is_right or self.authenticated
        return {"authentication_status": is_right}

    def posting_get_login_status(self) -> Reply:
        """Whether the user is logged in."""
        return {"login_status": bool(self.authenticated)}

    def post_tweet(
        self, content: str, tags: list[str] = _LEFT_OUT, mentions: list[str] = _LEFT_OUT
    ) -> Reply:
        """Post a text."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        tweet = {
            "id": self.tweet_counter,
            "username": self.username,
            "content": content,
            "tags": self._no_tags if tags is _LEFT_OUT else tags,
            "mentions": self._no_mentions if mentions is _LEFT_OUT else mentions,
        }
        self.tweets[self.tweet_counter] = tweet
        self.tweet_counter += 1
        return tweet

    def retweet(self, tweet_id: int) -> Reply:
        """Post a tweet again."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if tweet_id not in self.tweets:
            return _no_tweet(tweet_id)
        done = self.retweets.setdefault(self.username, [])
        if tweet_id in done:
            return {"retweet_status": "retweeted before"}
        done.append(tweet_id)
        return {"retweet_status": "retweeted"}

    def comment(self, tweet_id: int, comment_content: str) -> Reply:
        """Comment on a tweet."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if tweet_id not in self.tweets:
            return _no_tweet(tweet_id)
        said = {"username": self.username, "content": comment_content}
        self.comments.setdefault(tweet_id, []).append(said)
        return {"comment_status": "the comment is added"}

    def mention(self, tweet_id: int, mentioned_usernames: list[str]) -> Reply:
        """Mention users in a tweet."""
        if tweet_id not in self.tweets:
            return _no_tweet(tweet_id)
        self.tweets[tweet_id]["mentions"].extend(mentioned_usernames)
        return {"mention_status": "the users are mentioned"}

    def follow_user(self, username_to_follow: str) -> Reply:
        """Follow a user."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if username_to_follow in self.following_list:
            return {"follow_status": False}
        self.following_list.append(username_to_follow)
        return {"follow_status": True}

    def list_all_following(self) -> Reply:
        """Whom the user follows."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        return {"following_list": self.following_list}

    def unfollow_user(self, username_to_unfollow: str) -> Reply:
        """Follow a user no longer."""
        if not self.authenticated:
            return _NOT_LOGGED_IN
        if username_to_unfollow not in self.following_list:
            return {"unfollow_status": False}
        self.following_list.remove(username_to_unfollow)
        return {"unfollow_status": True}

    def get_tweet(self, tweet_id: int) -> Reply:
        """One tweet."""
        return self.tweets.get(tweet_id) or _no_tweet(tweet_id)

    def get_user_tweets(self, username: str) -> list[Reply]:
        """Tweets of a user."""
        return [tweet for tweet in self.tweets.values() if tweet["username"] == username]

    def search_tweets(self, keyword: str) -> list[Reply]:
        """Tweets that contain a word."""
        return [tweet for tweet in self.tweets.values() if _speaks_of(tweet, keyword)]

    def get_tweet_comments(self, tweet_id: int) -> list[Reply] | Reply:
        """Comments on a tweet."""
        if tweet_id not in self.tweets:
            return _no_tweet(tweet_id)
        return self.comments.get(tweet_id, [])

    def get_user_stats(self, username: str) -> Reply:
        """Numbers of a user's tweets, retweets and followed users."""
        return {
            "tweet_count": len(self.get_user_tweets(username)),
            "following_count": len(self.following_list) if username == self.username else 0,
            "retweet_count": len(self.retweets.get(username, [])),
        }


def _speaks_of(tweet: Reply, keyword: str) -> bool:
    word = keyword.lower()
    return word in tweet["content"].lower() or word in [tag.lower() for tag in tweet["tags"]]


def _no_tweet(tweet_id: int) -> Reply:
    return {"error": f"no tweet has the id {tweet_id}"}
