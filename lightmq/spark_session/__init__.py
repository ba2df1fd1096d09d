"""What a Spark session of LightMQ needs: its Java, its Python workers, restarts of queries, views of topics."""
