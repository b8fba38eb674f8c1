"""What no policy can beat: the strict bound and the free fleet."""
